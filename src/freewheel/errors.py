"""All errors that Freewheel raises itself, by who must act.

FreewheelError
├── ConfigError       the user, before anything starts: a setting that cannot work
├── EnvError          the author of the env: it broke the contract of an env
├── Diverged          the user: updates keep producing values that are not finite; the last good weights are kept
├── RoleLost          the user: an actor or the learner died, and no restarts are left
├── ReplayError       the caller of the replay, lanes, weights or ledger: the call was refused and changed nothing
├── CheckpointError   the user: a checkpoint is missing, damaged or of another run
└── ProtocolError     the peer at the other end of a socket: it broke the wire format
"""


class FreewheelError(Exception):
    """Every error that Freewheel raises itself."""


class ConfigError(FreewheelError):
    """A setting that cannot work; raised before anything starts."""


class EnvError(FreewheelError):
    """An env that broke its contract."""


class Diverged(FreewheelError):
    """Updates that were not finite again and again; the last good weights are kept."""


class RoleLost(FreewheelError):
    """An actor or learner that died and has no restarts left."""


class ReplayError(FreewheelError):
    """A call that shared memory refused; it changed nothing."""


class CheckpointError(FreewheelError):
    """A checkpoint that is missing, damaged or of another run."""


class ProtocolError(FreewheelError):
    """A peer that broke the wire format."""
