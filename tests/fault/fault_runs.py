"""Starts runs to be tested, and looks at them from outside."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from freewheel.store.checkpoint import Checkpoint, load_newest

HERE = Path(__file__).parent
MARK = "FREEWHEEL_TEST_RUN"
TIMES = int(os.environ.get("FREEWHEEL_FAULT", "1"))
"""How many times the counts of a commit's tests; `make fault` sets it."""

# The smallest run that has all roles: starts fast and steps fast.
SMALL: dict[str, Any] = {
    "runtime": "local",
    "world.lanes": 4,
    "world.kind": "inline",
    "local.actors": 2,
    "net.hidden": (8,),
    "learner.batch_size": 8,
    "learner.ratio": 1.0,
    "learner.compile": "off",
    "learner.workers": 1,
    "replay.warmup_rows": 64,
    "replay.rows": 4_000,
    "eval_episodes": 0,
    "log.tensorboard": False,
    "log.folder": "runs",
    "log.every_s": 0.2,
}


def flags(settings: dict[str, Any]) -> list[str]:
    """Settings as words of the command line, without those that are None."""
    words: list[str] = []
    for name, value in settings.items():
        if value is None:
            continue
        part, _, last = name.replace("_", "-").rpartition(".")
        dot = f"{part}." if part else ""
        if isinstance(value, bool):
            words.append(f"--{dot}{last}" if value else f"--{dot}no-{last}")
        else:
            words += [f"--{dot}{last}", *([str(v) for v in value] if isinstance(value, tuple) else [str(value)])]
    return words


class Run:
    """One process under test with all that it starts. Its folder holds `out`, `err`, `runs` and what its envs write."""

    def __init__(self, folder: Path, pid: int, mark: str, process: subprocess.Popen[bytes] | None = None) -> None:
        self.folder, self.pid, self.mark, self.process = folder, pid, mark, process

    def wait(self, timeout_s: float = 60.0) -> int:
        """Its exit code, negative for a signal."""
        if self.process is not None:
            return self.process.wait(timeout_s)
        path = self.folder / "exit"
        until(path.exists, timeout_s, lambda: f"the run did not end; it said:\n{self.err}")
        return int(path.read_text())

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None if self.process is not None else (self.folder / "exit").exists()

    @property
    def err(self) -> str:
        return (self.folder / "err").read_text()

    @property
    def facts(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "facts.json").read_text())
        return found

    def send(self, number: int, to_group: bool = False) -> None:
        """Ctrl-C in a terminal goes to the group, `kill` to the process alone."""
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if to_group else os.kill)(self.pid, number)

    def processes(self) -> set[int]:
        """All that belongs to the run and lives; the first process of a forked run shows no mark."""
        found = marked(self.mark)
        return found if self.has_ended or self.process is not None else found | {self.pid}

    def checkpoint(self) -> Checkpoint | None:
        """The newest one, which must be whole; None before the first."""
        folders = [path for path in self.folder.glob("runs/*/checkpoints") if list(path.glob("step-*"))]
        if not folders:
            return None
        found = load_newest(folders[0])
        assert found.warnings == (), found.warnings
        return found

    def name(self) -> str:
        (folder,) = (self.folder / "runs").iterdir()
        return folder.name


class Nursery:
    """The process that runs are forked from."""

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": path_with_us(), "PYTHONWARNINGS": "default"}
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "fault_nursery.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        self._answer()

    def start(
        self,
        folder: Path,
        env: str,
        settings: dict[str, Any] | None = None,
        *words: str,
        environment: dict[str, str] | None = None,
    ) -> Run:
        """`freewheel train env` with SMALL settings and these."""
        given = ["--preset", "none", "--json", "--quiet", *flags({**SMALL, **(settings or {})}), *words]
        return self.call(folder, "freewheel.cli.main:main", ["train", env, *given], environment)

    def drive(self, folder: Path, plan: dict[str, Any]) -> Run:
        """A run with somebody in the supervisor's process who does as the plan says; see fault_drive."""
        whole = {**plan, "settings": {**SMALL, **plan.get("settings", {})}}
        return self.call(folder, "fault_drive:main", whole, plan.get("environment"))

    def call(self, folder: Path, function: str, arguments: Any, environment: dict[str, str] | None = None) -> Run:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "exit").unlink(missing_ok=True)
        mark = uuid.uuid4().hex
        order = {
            "folder": str(folder),
            "call": function,
            "arguments": arguments,
            "environment": {**(environment or {}), MARK: mark},
        }
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order).encode() + b"\n")
        self.process.stdin.flush()
        return Run(folder, self._answer()["pid"], mark)

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], 60)[0], "the nursery does not answer"
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found


def command(folder: Path, env: str, settings: dict[str, Any]) -> Run:
    """`freewheel train` from its first instruction on, as a shell starts it."""
    folder.mkdir(parents=True, exist_ok=True)
    # Tests in the background of a shell ignore Ctrl-C, and a child would too until it sets a handler of its own.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    mark = uuid.uuid4().hex
    given = {**SMALL, **settings}
    if given["runtime"] == "sequential":  # refuses what only local roles have
        given = {name: value for name, value in given.items() if not name.startswith(("local.", "learner.workers"))}
    words = ["train", env, "--preset", "none", "--json", "--quiet", *flags(given)]
    with open(folder / "out", "wb") as out, open(folder / "err", "wb") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "freewheel.cli.main", *words],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path_with_us(), MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
    return Run(folder, process.pid, mark, process)


def path_with_us() -> str:
    return os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])


def marked(mark: str) -> set[int]:
    """Living processes that began with this mark in their environment."""
    wanted, found = f"{MARK}={mark}".encode(), set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.add(int(folder.name))
    return found


def is_alive(pid: int) -> bool:
    """Running or stopped; a dead one that nobody has asked for yet is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def until(happens: Callable[[], Any], timeout_s: float, what: str | Callable[[], str]) -> None:
    deadline = time.monotonic() + timeout_s
    while not happens():
        assert time.monotonic() < deadline, what if isinstance(what, str) else what()
        time.sleep(0.01)


def assert_all_gone(run: Run, timeout_s: float = 15.0) -> None:
    """Nobody of the run lives, the helpers of its envs included, and no name is left in shared memory."""
    path = run.folder / "helpers"
    helpers = {int(line) for line in path.read_text().split()} if path.exists() else set()

    def left() -> set[int]:
        return run.processes() | {pid for pid in helpers if is_alive(pid)}

    until(lambda: not left(), timeout_s, lambda: f"still there: {[describe(pid) for pid in left()]}")
    assert [name for name in os.listdir("/dev/shm") if "freewheel" in name] == []


def describe(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        return f"{pid} {Path(f'/proc/{pid}/stat').read_text().split()[2]} {words[:80]}"
    except OSError:
        return f"{pid} (gone)"


def kill_all(run: Run) -> None:
    """After a test that failed."""
    for pid in run.processes():
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
