"""What every role does before its work: it ignores Ctrl-C, dies with its parent, and shows its stack when asked."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from freewheel.errors import ConfigError, Diverged, EnvError, FreewheelError, RoleLost
from freewheel.report.processes import is_alive
from freewheel.run.channel import Channel

# Name in the environment of every process that belongs to a run, the env's own helpers included.
OWNER = "FREEWHEEL_OWNER"
PR_SET_PDEATHSIG = 1
MOST_TEXT = 20_000
# How a role says that a second start would end the same way.
FINAL, AGAIN = 3, 4


@dataclass
class Trouble:
    """Why a role ended: what is told, and what the run makes of it."""

    kind: str
    text: str
    trace: str
    is_final: bool

    @classmethod
    def of(cls, error: BaseException) -> Trouble:
        """A mistake of the user, a breach of the env's contract or a divergence would come again; whatever else happened may not."""
        broke_contract = isinstance(error, EnvError) and error.__cause__ is None
        # Of our own errors the message says all; the lines of the user's code are those of its cause.
        shown = error.__cause__ if isinstance(error, FreewheelError) else error
        return cls(
            type(error).__name__,
            str(error)[-MOST_TEXT:],
            "".join(traceback.format_exception(shown))[-MOST_TEXT:] if shown is not None else "",
            broke_contract or isinstance(error, (ConfigError, Diverged)),
        )

    def error(self, who: str) -> FreewheelError:
        """As it is raised where the user sees it."""
        kinds = {"ConfigError": ConfigError, "EnvError": EnvError, "Diverged": Diverged}
        return kinds.get(self.kind, RoleLost)(self.text if self.kind in kinds else f"{who}: {self.kind}: {self.text}")


def name_of(kind: str, index: int) -> str:
    """`actor-0`, `learner`: only of actors and workers there may be several."""
    return f"{kind}-{index}" if kind in ("actor", "worker") else kind


def begin(parent: int, owner: str) -> int:
    """The first instructions of a role's process. Gives the file that its stack is written into when SIGUSR1 asks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    os.environ[OWNER] = owner
    _die_with(parent)
    os.setpgid(0, 0)  # what the env starts can be ended with it
    stack = os.memfd_create("freewheel-stack") if hasattr(os, "memfd_create") else 2
    faulthandler.register(signal.SIGUSR1, file=stack, all_threads=True)
    return stack


def run(channel: Channel, work: Callable[[], None]) -> None:
    """Works; what goes wrong is told to the supervisor, and the exit code says whether another start makes sense."""
    code = 0
    try:
        work()
    except BaseException as error:
        trouble = Trouble.of(error)
        channel.send({"trouble": vars(trouble)})
        code = FINAL if trouble.is_final else AGAIN
    channel.socket.settimeout(5.0)
    channel.flush()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)  # nothing that an env left running may hold the process


def _die_with(parent: int) -> None:
    """With the forkserver. Checked afterwards: the supervisor may have died before we asked.

    A forkserver with children outlives a supervisor that was killed: those then see the end of their channel, and the warden
    ends whoever cannot look.
    """
    if sys.platform != "linux":
        return
    libc: Any = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() == 1 or not is_alive(parent):
        os._exit(1)
