"""The bench process's side of a child that measures: start it, ask it line by line, always reap it."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from freewheel.errors import FreewheelError

# Importing torch and a peer takes some seconds on an idle machine; the deadline is for a busy one.
START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 5.0
TAIL_LINES = 12

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


@dataclass(frozen=True)
class Program:
    """What a child runs: `python -m module args`, with the folders in `path` to import from besides what is installed."""

    python: Path
    module: str
    args: tuple[str, ...] = ()
    path: tuple[Path, ...] = ()


def own_program(module: str, *args: str) -> Program:
    """A module of ours in this interpreter."""
    return Program(Path(sys.executable), f"freewheel.bench.{module}", args)


class PeerFailed(FreewheelError):
    """A child that could not start, answer in time, or do what it was asked; its figures are left out."""


class Child:
    """One child process that answers each JSON line with one JSON line, and sleeps in between.

    It is a session of its own, so that Ctrl-C reaches only the bench process, and stopping it takes along
    whatever processes it started. Its current directory is an empty one that goes with it: no file of the user's directory
    takes the place of a module it imports. It ends when its stdin closes, so it does not outlive its parent.
    """

    def __init__(self, name: str, program: Program) -> None:
        self.name = name
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the child
        self._unread = b""
        self._folder = tempfile.TemporaryDirectory(prefix="freewheel-bench-", ignore_cleanup_errors=True)
        environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, "1"), "TMPDIR": self._folder.name}
        # What was compiled once stays where torch keeps it without us.
        environment.setdefault(
            "TORCHINDUCTOR_CACHE_DIR", os.path.join(tempfile.gettempdir(), f"torchinductor_{getpass.getuser()}")
        )
        # The user's own is meant for this interpreter, not for the peers'.
        environment.pop("PYTHONPATH", None)
        if program.path:
            environment["PYTHONPATH"] = os.pathsep.join(map(str, program.path))
        self._process = subprocess.Popen(
            [str(program.python), "-m", program.module, *program.args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=environment,
            cwd=self._folder.name,
            start_new_session=True,
        )
        try:
            self.greeting = self._answer(START_TIMEOUT_S)
        except BaseException:
            self.stop()
            raise

    def ask(self, message: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """The child's answer; `PeerFailed` with its last lines of stderr when it has none in time."""
        stdin = self._process.stdin
        assert stdin is not None
        try:
            stdin.write(json.dumps(message).encode() + b"\n")
            stdin.flush()
        except BrokenPipeError as error:
            raise self._failed(f"ended before it could be asked for {message['op']!r}") from error
        answer = self._answer(timeout_s)
        if "error" in answer:
            raise self._failed(f"could not do {message}: {answer['error']}")
        return answer

    def stop(self) -> None:
        """Let it end, and kill its whole session when it does not; safe to call twice."""
        process = self._process
        if self._stderr.closed:
            return  # stopped before; its process number may belong to somebody else by now
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # a line it never read is still in the buffer
                process.stdin.close()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            with contextlib.suppress(ProcessLookupError):  # nobody of its session is left
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
            self._stderr.close()
            self._folder.cleanup()

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _answer(self, timeout_s: float) -> dict[str, Any]:
        stdout = self._process.stdout
        assert stdout is not None
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._unread:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([stdout], [], [], left)[0]:
                raise self._failed(f"gave no answer within {timeout_s:.0f} s")
            part = os.read(stdout.fileno(), 65536)
            if not part:
                raise self._failed(f"ended with exit code {self._process.wait(STOP_TIMEOUT_S)}")
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _failed(self, what: str) -> PeerFailed:
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").splitlines()[-TAIL_LINES:]
        said = "; its last lines were:\n  " + "\n  ".join(lines) if lines else ""
        return PeerFailed(f"{self.name} (pid {self._process.pid}) {what}{said}")
