"""All errors that Freewheel raises itself, by who must act.

FreewheelError
├── ConfigError       the user, before anything starts: a setting that cannot work
│   └── Untrusted     the user: a run folder that somebody else may have written names code
├── EnvError          the author of the env: it broke the contract of an env
├── Diverged          the user: updates keep producing values that are not finite; the last good weights are kept
├── RoleLost          the user: an actor or the learner died, and no restarts are left
├── ReplayError       the caller of the replay, lanes, weights or ledger: the call was refused and changed nothing
├── CheckpointError   the user: a checkpoint is missing, damaged or of another run
└── ProtocolError     the peer at the other end of a socket: it broke the wire format
"""

from __future__ import annotations

import traceback
from asyncio import CancelledError
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

MOST_TEXT = 20_000  # of an error that goes to another process
# What the user's code may raise: a sys.exit() in it must not look like a run that succeeded, and asyncio's end of a task is an error.
RAISED = (Exception, SystemExit, GeneratorExit, CancelledError)
MOST_QUOTED = 2_000  # characters of an error's message in another message
MOST_SHOWN = 200  # characters of a value in a message


class FreewheelError(Exception):
    """Every error that Freewheel raises itself. If the training was complete by then, `run` is what it returned."""

    run: Any = None


class ConfigError(FreewheelError):
    """A setting that cannot work; raised before anything starts."""


class Untrusted(ConfigError):
    """A run folder names code, and nobody has said that it may be imported."""


class EnvError(FreewheelError):
    """An env that broke its contract."""


class Breach(Exception):
    """What an env did wrong, and the cure, for a part of ours that stands between it and the world. The world says where."""

    def __init__(self, what: str, cure: str) -> None:
        super().__init__(f"{what}. {cure}")
        self.what, self.cure = what, cure


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


def shown(value: Any) -> str:
    """A value in a message: the beginning, if it is long."""
    try:
        text = repr(value)
    except ValueError:  # Python does not write numbers of more than 4,300 digits
        return "a number of more than 4,300 digits"
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}... ({len(text):,} characters)"


def quoted(error: BaseException) -> str:
    """Its message, of code that is not ours: it may be long, and may fail itself."""
    try:
        text = str(error)
    except Exception as other:
        return f"(its message cannot be shown: {type(other).__name__})"
    return text if len(text) <= MOST_QUOTED else f"{text[:MOST_QUOTED]}... ({len(text):,} characters)"


class ChildTrace(Exception):
    """The traceback of another process, as the cause of the error that its error becomes here."""


@contextmanager
def exits_are_errors() -> Iterator[None]:
    """For code of the user that has no error of its own: losses, callbacks, algorithms."""
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
        broke_contract = isinstance(error, EnvError) and isinstance(error.__cause__, (Breach, type(None)))
        # The message of our own errors is enough; the traceback of the user's code belongs to the cause.
        shown = error.__cause__ if isinstance(error, FreewheelError) else error
        return cls(
            type(error).__name__,
            str(error)[:MOST_TEXT] if isinstance(error, FreewheelError) else quoted(error),
            "".join(traceback.format_exception(shown))[-MOST_TEXT:] if shown is not None else "",
            broke_contract or isinstance(error, (ConfigError, Diverged)),
        )

    def error(self, who: str, other: type[FreewheelError] = RoleLost) -> FreewheelError:
        """The error to raise there; `other` if it is not one of ours."""
        kinds = {"ConfigError": ConfigError, "EnvError": EnvError, "Diverged": Diverged}
        return kinds.get(self.kind, other)(self.text if self.kind in kinds else f"{who}: {self.kind}: {self.text}")
