"""The supervisor's side of what outlives it: the forkserver's start, and the warden that ends what is left running."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

from freewheel.run import warden
from freewheel.run.role import OWNER
from freewheel.run.threads import VARIABLES, WAITING, wait_passively

_marks: dict[int, str] = {}  # by process: a fork copies this


def owner_id() -> str:
    """The mark of all that this process starts; no other process on this machine has the same."""
    return _marks.setdefault(os.getpid(), f"{os.getpid()}-{time.monotonic_ns()}")


def start_forkserver() -> None:
    """Starts the process that roles are forked from, with everything loaded; does nothing if it runs.

    Its environment is that of every role: one thread for each numeric library, and the run's mark. Ctrl-C is blocked in it from
    its first instruction on.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload(["freewheel.run.entry"])
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


class Guard:
    """The warden's process. It is told which process groups belong to the run."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        start_forkserver()
        environment = {name: value for name, value in os.environ.items() if name != OWNER}
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(warden.__file__)), f"{OWNER}={owner_id()}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )

    def add(self, group: int) -> None:
        self._say(str(group))

    def remove(self, group: int) -> None:
        self._say(f"-{group}")

    def close(self) -> None:
        """Ends the warden; it is not needed where the supervisor ends its roles itself."""
        if self._process is None:
            return
        self._say("done")
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        try:
            self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(5.0)
        self._process = None

    def _say(self, line: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.write(line.encode() + b"\n")
                self._process.stdin.flush()
