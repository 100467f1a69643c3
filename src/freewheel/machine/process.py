"""Processes of this machine: the forkserver they are forked from, and what each of them does first."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import multiprocessing
import os
import signal
import sys
import time
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

from freewheel.machine.threads import VARIABLES, WAITING, wait_passively

# Name in the environment of every process that belongs to a run, the env's own helpers included.
OWNER = "FREEWHEEL_OWNER"
# The module that has all that the roles of a run need.
ROLES = "freewheel.run.entry"
PR_SET_PDEATHSIG = 1

_marks: dict[int, str] = {}  # by process: a fork copies this


def owner_id() -> str:
    """The mark of all that this process starts; no other process on this machine has the same."""
    return _marks.setdefault(os.getpid(), f"{os.getpid()}-{time.monotonic_ns()}")


def start_forkserver(preload: str = ROLES) -> None:
    """Starts the process that roles are forked from, with everything loaded; does nothing if it runs.

    Its environment is that of every role: one thread for each numeric library, and the run's mark. Ctrl-C is blocked in it from
    its first instruction on.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload([preload])
    resource_tracker.ensure_running()  # before the mask: its start would lift it
    before = {name: os.environ.get(name) for name in (*VARIABLES, *WAITING, OWNER)}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        os.environ.update(dict.fromkeys(VARIABLES, "1"))
        wait_passively()
        os.environ[OWNER] = owner_id()
        forkserver.ensure_running()
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


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


def is_alive(pid: int) -> bool:
    """A process that ended but was not waited for is not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    except (OSError, IndexError):  # no /proc, or gone meanwhile
        return not Path("/proc/self").exists()


def how_it_ended(code: int | None) -> str:
    """A process, by its exit code."""
    if code is None or code >= 0:
        return f"ended with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"died by {signal.Signals(-code).name}"
    return f"died by signal {-code}"


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
