"""Two workers side by side that run by turns, a slice of time each: what disturbs the machine for longer than a slice hits both.

A worker does not take part in this: it is stopped with all its processes, and told through shared memory how long it stood still.
Files in its folder carry the rest: it makes `warm` when its window opens, and `result.json` when the window closes.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

PAUSED, WARM, RESULT, OUTPUT = "paused", "warm", "result.json", "output.txt"
# Some hundred turns of an actor, and 100 times what stopping and going on takes.
SLICE_S = 0.25
POLL_S = 0.01
END_S = 30.0
TAIL = 2_000


class GateError(Exception):
    """A side that could not be measured."""


class Worker:
    """A process and everything it started, which can be paused. Its paused seconds lie in a file that it maps."""

    def __init__(self, name: str, command: Sequence[str], env: Mapping[str, str], folder: Path) -> None:
        self.name, self.folder = name, folder
        (folder / PAUSED).write_bytes(struct.pack("d", 0.0))
        with (folder / PAUSED).open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 8)
        self._stopped: list[int] = []
        self._since_s = self._paused_s = 0.0
        with (folder / OUTPUT).open("wb") as output:
            self._process = subprocess.Popen(
                [*command, str(folder)], env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    def pause(self) -> None:
        """Parents before children: nobody watches another one stand still."""
        self._since_s = time.perf_counter()
        while found := [pid for pid in family(self._process.pid) if pid not in self._stopped]:
            for pid in found:
                _send(pid, signal.SIGSTOP)
            self._stopped += found

    def resume(self) -> None:
        if not self._stopped:
            return
        self._paused_s += time.perf_counter() - self._since_s
        self._memory[:8] = struct.pack("d", self._paused_s)
        for pid in reversed(self._stopped):
            _send(pid, signal.SIGCONT)
        self._stopped = []

    def has(self, file: str) -> bool:
        """Whether it has got so far; a GateError with its last lines if it ended before."""
        if (self.folder / file).exists():
            return True
        if self._process.poll() is not None:
            raise GateError(f"{self.name} ended with {self._process.returncode}:\n{self._tail()}")
        return False

    def result(self) -> dict[str, Any]:
        """Lets it end by itself."""
        self.resume()
        try:
            code = self._process.wait(END_S)
        except subprocess.TimeoutExpired as error:
            raise GateError(f"{self.name} was measured and did not end:\n{self._tail()}") from error
        if code:
            raise GateError(f"{self.name} was measured and ended with {code}:\n{self._tail()}")
        found: dict[str, Any] = json.loads((self.folder / RESULT).read_text())
        return found

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            for pid in family(self._process.pid):
                _send(pid, signal.SIGKILL)
        self._process.wait()
        self._memory.close()

    def output(self) -> str:
        return (self.folder / OUTPUT).read_text(errors="replace")

    def _tail(self) -> str:
        return self.output()[-TAIL:].strip()


def by_turns(workers: Sequence[Worker], timeout_s: float, slice_s: float = SLICE_S) -> None:
    """Until both have a result: they warm up together, then the first begins. Who has finished stands still until the other has."""
    deadline = time.monotonic() + timeout_s
    cold = list(workers)
    while cold:
        for worker in [worker for worker in cold if worker.has(WARM)]:
            worker.pause()
            cold.remove(worker)
        _rest(workers, deadline)
    while left := [worker for worker in workers if not worker.has(RESULT)]:
        for worker in left:
            worker.resume()
            _wait(lambda worker=worker: worker.has(RESULT), slice_s)  # type: ignore[misc]
            worker.pause()
        _rest(workers, deadline)


def family(pid: int) -> list[int]:
    """The process and all below it, parents first."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended while we looked
            own, rest = stat.read_text().split(" (", 1)
            children.setdefault(int(rest.rsplit(")", 1)[1].split()[1]), []).append(int(own))
    found, new = [pid], [pid]
    while new := [child for parent in new for child in children.get(parent, [])]:
        found += new
    return found


def _wait(is_over: Callable[[], bool], seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until and not is_over():
        time.sleep(POLL_S)


def _rest(workers: Sequence[Worker], deadline: float) -> None:
    if time.monotonic() > deadline:
        raise GateError(f"{' and '.join(worker.name for worker in workers)} were not measured in time")
    time.sleep(POLL_S)


def _send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
