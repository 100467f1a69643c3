"""The guard of a run: it looks after the processes that are no roles, the warden and the forkserver."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

from freewheel.machine import warden
from freewheel.machine.forkserver import ForkserverWatch, start_forkserver, wake_tracker
from freewheel.machine.process import OWNER, is_stopped, owner_id
from freewheel.machine.temp_folder import own_folder


class Guard:
    """Starts the warden and tells it the process groups of the run. `look` replaces what was killed or stopped."""

    def __init__(self) -> None:
        self._warden: subprocess.Popen[bytes] | None = None
        self._groups: set[int] = set()
        self._forkserver = ForkserverWatch()

    def start(self) -> None:
        start_forkserver()
        self._warden = subprocess.Popen(
            [sys.executable, "-I", "-S", warden.__file__, f"{OWNER}={owner_id()}", own_folder()],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={name: value for name, value in os.environ.items() if name != OWNER},
            start_new_session=True,
        )
        for group in self._groups:
            self._say(str(group))

    def add(self, group: int) -> None:
        self._groups.add(group)
        self._say(str(group))

    def remove(self, group: int) -> None:
        self._groups.discard(group)
        self._say(f"-{group}")

    def look(self, now: float) -> list[str]:
        """What was found and done, for the user."""
        notes = []
        if self._warden is not None and (self._warden.poll() is not None or is_stopped(self._warden.pid)):
            notes.append(f"The warden (pid {self._warden.pid}) was killed or stopped, and is replaced.")
            self.close()
            self.start()
        if self._forkserver.look(now):
            notes.append("The forkserver was stopped, did not go on, and is replaced, and all roles with it.")
        return notes

    def close(self) -> None:
        """Ends the warden, when the supervisor has ended its roles itself. It is killed, for it acts when its input closes."""
        wake_tracker()
        if self._warden is None:
            return
        self._warden.kill()
        self._warden.wait(5.0)
        if self._warden.stdin is not None:
            with contextlib.suppress(OSError):
                self._warden.stdin.close()
        self._warden = None

    def _say(self, line: str) -> None:
        if self._warden is not None and self._warden.stdin is not None:
            with contextlib.suppress(OSError):
                self._warden.stdin.write(line.encode() + b"\n")
                self._warden.stdin.flush()
