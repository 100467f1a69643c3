"""Processes of a run: the marks by which they are found, and what each of them does first and last."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import fcntl
import multiprocessing
import os
import select
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from freewheel.machine.warden import kill_marked

# Environment variable of every process of a run, including those that an env starts: the mark of the run, and the processes below it
# that led there, such as 4711-99/0000004712/0000004730 for what a worker of an actor's pool has started.
OWNER = "FREEWHEEL_OWNER"
NOBODY = "/" + 10 * "0"  # the place for a process that is not there yet
ASKS_TO_END = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
SWEEP_S = 1.5  # killed processes take a moment to end
PR_SET_PDEATHSIG = 1
F_SETSIG = 10  # fcntl has no name for it before Python 3.13

_marks: dict[int, str] = {}  # by process: a fork copies this


def owner_id() -> str:
    """Marks all processes that this one starts; unique on this machine."""
    return _marks.setdefault(os.getpid(), f"{os.getpid()}-{time.monotonic_ns()}")


def below(owner: str, pid: int) -> str:
    """The mark of what this process starts, which `owner` has started."""
    return f"{owner}/{pid:010d}"


def sweep(pids: Iterable[int]) -> None:
    """Kills what processes of this one have left behind when they ended, also in a session of its own."""
    marks = [f"{OWNER}={below(owner_id(), pid)}" for pid in pids]
    until_s = time.monotonic() + SWEEP_S
    while marks and kill_marked(marks) and time.monotonic() < until_s:
        time.sleep(0.01)


def mark_programs() -> None:
    """Programs that this process starts itself, such as those of an env in the sequential runtime, end with it by `sweep_own`."""
    os.environ.setdefault(OWNER, below(owner_id(), os.getpid()))


def sweep_own() -> None:
    sweep([os.getpid()])


def begin(owner: str, group: int = 0) -> None:
    """The first instructions of a process that steps an env or computes. It joins a process group, or leads its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ASKS_TO_END)
    with contextlib.suppress(OSError):
        os.setpgid(0, group)  # a signal to the group reaches this process and all that its env starts
    _mark(owner)
    _die_with_parent()


def begin_role(owner: str) -> int:
    """`begin` for a role of a run. Returns the file descriptor to which SIGUSR1 writes its stack."""
    begin(owner)
    stack = os.memfd_create("freewheel-stack") if hasattr(os, "memfd_create") else 2
    faulthandler.register(signal.SIGUSR1, file=stack, all_threads=True)
    return stack


def leave(code: int) -> NoReturn:
    """The last instructions: threads that an env left running must not keep the process alive."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def is_alive(pid: int) -> bool:
    """False also for a zombie."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    except (OSError, IndexError):  # no /proc, or it has ended since
        return not Path("/proc/self").exists()


def is_stopped(pid: int) -> bool:
    """By SIGSTOP or a debugger."""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    return False


def how_it_ended(code: int | None) -> str:
    """How a process with this exit code ended."""
    if code is None or code >= 0:
        return f"ended with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"died by {signal.Signals(-code).name}"
    return f"died by signal {-code}"


def _mark(owner: str) -> None:
    """Marks this process in its environment, which programs inherit, and where /proc shows it, which processes that it forks inherit."""
    mark = _marks[os.getpid()] = os.environ[OWNER] = below(owner, os.getpid())
    if not Path("/proc/self/stat").exists():
        return
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    first, end = int(stat[47]), int(stat[48])
    place = f"{OWNER}={owner}{NOBODY}".encode()
    at = ctypes.string_at(first, end - first).find(place)
    if at >= 0:
        ctypes.memmove(first + at, f"{OWNER}={mark}".encode(), len(place))


def _die_with_parent() -> None:
    """The kernel kills this process when the one that started it is gone, even while an env holds the interpreter.

    The parent of this process is the forkserver. But only the process that started it holds the other end of the sentinel's pipe.
    """
    if sys.platform != "linux":
        return
    libc: Any = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    parent = multiprocessing.parent_process()
    assert parent is not None
    pipe: int = parent.sentinel
    fcntl.fcntl(pipe, F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([pipe], [], [], 0)[0]:  # it was gone already
        os._exit(1)
