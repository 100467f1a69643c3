"""The supervisor's side of what outlives it: the forkserver's start, and the warden that ends what is left running."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

from freewheel.machine import warden
from freewheel.machine.process import OWNER, owner_id, start_forkserver


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
