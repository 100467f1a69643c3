"""What can go wrong, by who must act.

FreewheelError
├── ConfigError       the user, before anything starts: a setting that cannot work
├── EnvError          the user's env broke its contract
├── Diverged          the user: training ran away into numbers that are not finite
├── RoleLost          an actor or the learner died and its restarts are used up
├── ReplayError       the caller of the replay, lanes, weights or ledger: nothing was written, nothing was lost
├── CheckpointError   a saved state that is missing, foreign or damaged
└── ProtocolError     the peer at the other end of a socket
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
    """An actor or learner that died and may not be started again."""


class ReplayError(FreewheelError):
    """A call that shared memory refused; nothing was written and nothing was lost."""


class CheckpointError(FreewheelError):
    """A saved state that is missing, foreign or damaged."""


class ProtocolError(FreewheelError):
    """A peer that broke the wire format."""
