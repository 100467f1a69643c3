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

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

MOST_TEXT = 20_000  # of an error that goes to another process


class FreewheelError(Exception):
    """Every error that Freewheel raises itself. If the training was complete by then, `run` is what it returned."""

    run: Any = None


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


class ChildTrace(Exception):
    """The traceback of another process, as the cause of the error that its error becomes here."""


@contextmanager
def exits_are_errors() -> Iterator[None]:
    """sys.exit() in the user's env, loss or callback must not look like a run that succeeded."""
    try:
        yield
    except SystemExit as error:
        raise RoleLost(f"your code called sys.exit({error.code!r}), which ended the run. Raise an error.") from error


def with_run(error: BaseException, run: Any) -> BaseException:
    """An error after the training, which does not cost the caller its run."""
    if isinstance(error, FreewheelError):
        error.run = run
    return error


@contextmanager
def about(policy: str) -> Iterator[None]:
    """Errors of one of several policies say its name. A single policy has the name ""."""
    try:
        yield
    except (ConfigError, EnvError, Diverged) as error:
        error.args = (f"policy {policy}: {error}" if policy else str(error),)
        raise


@dataclass
class Trouble:
    """An error on its way from a role or a worker to the process that started it. If `is_final`, a restart would fail the same way."""

    kind: str
    text: str
    trace: str
    is_final: bool

    @classmethod
    def of(cls, error: BaseException) -> Trouble:
        """Wrong settings, an env that breaks its contract and a divergence come again after a restart; other errors may not."""
        broke_contract = isinstance(error, EnvError) and error.__cause__ is None
        # The message of our own errors is enough; the traceback of the user's code belongs to the cause.
        shown = error.__cause__ if isinstance(error, FreewheelError) else error
        return cls(
            type(error).__name__,
            str(error)[-MOST_TEXT:],
            "".join(traceback.format_exception(shown))[-MOST_TEXT:] if shown is not None else "",
            broke_contract or isinstance(error, (ConfigError, Diverged)),
        )

    def error(self, who: str, other: type[FreewheelError] = RoleLost) -> FreewheelError:
        """The error to raise there; `other` if it is not one of ours."""
        kinds = {"ConfigError": ConfigError, "EnvError": EnvError, "Diverged": Diverged}
        return kinds.get(self.kind, other)(self.text if self.kind in kinds else f"{who}: {self.kind}: {self.text}")
