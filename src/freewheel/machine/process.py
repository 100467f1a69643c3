"""Processes of a run: the forkserver, what each process does first, and the warden that ends what is left over."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import fcntl
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import time
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any, NoReturn

from freewheel.machine import warden
from freewheel.machine.threads import VARIABLES, WAITING, environment_kept, wait_passively

# Environment variable of every process of a run, including those that an env starts.
OWNER = "FREEWHEEL_OWNER"
# Imports all that the roles of a run need.
ROLES = "freewheel.run.entry"
PR_SET_PDEATHSIG = 1
F_SETSIG = 10  # fcntl has no name for it before Python 3.13

_marks: dict[int, str] = {}  # by process: a fork copies this


def owner_id() -> str:
    """Marks all processes that this one starts; unique on this machine."""
    return _marks.setdefault(os.getpid(), f"{os.getpid()}-{time.monotonic_ns()}")


def start_forkserver(preload: str = ROLES) -> None:
    """Starts the process from which roles are forked, with everything loaded, unless it runs already.

    Roles inherit its environment: one thread for each numeric library, and the run's mark. It blocks Ctrl-C from its start.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload([preload])
    resource_tracker.ensure_running()  # before the mask: its start would lift it
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        with environment_kept(*VARIABLES, *WAITING, OWNER):
            os.environ.update(dict.fromkeys(VARIABLES, "1"))
            wait_passively()
            os.environ[OWNER] = owner_id()
            forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def begin(group: int = 0) -> None:
    """The first instructions of a process that steps an env or computes. It joins a process group, or leads its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    with contextlib.suppress(OSError):
        os.setpgid(0, group)  # a signal to the group reaches this process and all that its env starts
    _die_with_parent()


def begin_role(owner: str) -> int:
    """`begin` for a role of a run. Returns the file descriptor to which SIGUSR1 writes its stack."""
    begin()
    os.environ[OWNER] = owner
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


def how_it_ended(code: int | None) -> str:
    """How a process with this exit code ended."""
    if code is None or code >= 0:
        return f"ended with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"died by {signal.Signals(-code).name}"
    return f"died by signal {-code}"


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


class Guard:
    """The warden's process, which knows the process groups of the run."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        start_forkserver()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", warden.__file__, f"{OWNER}={owner_id()}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={name: value for name, value in os.environ.items() if name != OWNER},
            start_new_session=True,
        )

    def add(self, group: int) -> None:
        self._say(str(group))

    def remove(self, group: int) -> None:
        self._say(f"-{group}")

    def close(self) -> None:
        """Ends the warden, when the supervisor has ended its roles itself."""
        if self._process is None:
            return
        try:
            self._process.communicate(b"done\n", 5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(5.0)
        self._process = None

    def _say(self, line: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.write(line.encode() + b"\n")
                self._process.stdin.flush()
