"""Trainings as child processes, some at a time, and the file that keeps what they gave."""

from __future__ import annotations

import contextlib
import csv
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.learn.table import Row
from freewheel.bench.child import TAIL_LINES, THREAD_VARIABLES
from freewheel.errors import ConfigError
from freewheel.report.episodes import WINDOW

POLL_S = 0.2
# The longest row takes minutes; a training that takes hours hangs.
TRAIN_TIMEOUT_S = 2 * 3600.0

# `freewheel`, but ended by the kernel when the bench process dies.
START = (
    "import sys; from freewheel.bench.worker.serve import die_with_parent; die_with_parent(); "
    "from freewheel.cli.main import main; sys.exit(main())"
)


@dataclass(frozen=True)
class Training:
    """One row with one seed, and the settings that it had when the bench began."""

    row: Row
    seed: int
    fingerprint: str

    @property
    def name(self) -> str:
        return f"{self.row.name} seed {self.seed}"

    @property
    def key(self) -> tuple[str, int, str]:
        return self.row.name, self.seed, self.fingerprint

    def is_outdated(self) -> bool:
        """Whether the preset was edited meanwhile: what it would give belongs to other settings."""
        try:
            return self.row.fingerprint(self.seed) != self.fingerprint
        except ConfigError:
            return True


@dataclass(frozen=True)
class Trained:
    """What a training gave; `problem` says why it gave no return."""

    row: str
    seed: int
    fingerprint: str
    eval_return_mean: float | None
    return_mean: float | None = None
    seconds: float = 0.0
    steps_to: int | None = None  # steps until 100 training episodes in a row reached the row's level on average
    problem: str | None = None


class Results:
    """Finished trainings by row, seed and settings; in a file too, if there is one, after each of them."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._kept: dict[tuple[str, int, str], Trained] = {}
        if path is None:
            return
        if not path.absolute().parent.is_dir():
            raise ConfigError(f"--out {path}: there is no folder {path.absolute().parent}. Make it first.")
        if path.exists():
            for kept in _read(path):
                self._kept[kept.row, kept.seed, kept.fingerprint] = kept

    def of(self, training: Training) -> Trained | None:
        return self._kept.get(training.key)

    def add(self, trained: Trained) -> None:
        """One that failed is not kept in the file: the next call tries it again."""
        self._kept[trained.row, trained.seed, trained.fingerprint] = trained
        if self._path is not None:
            finished = [asdict(kept) for kept in self._kept.values() if kept.problem is None]
            beside = self._path.with_name(f".{self._path.name}.{os.getpid()}")
            beside.write_text(json.dumps({"bench": "learn", "trainings": finished}, indent=1) + "\n")
            beside.replace(self._path)


def command(training: Training, runs: Path) -> list[str]:
    words = [sys.executable, "-c", START, "train", training.row.env, "--json", "--quiet", "--log.folder", str(runs)]
    words += ["--log.thin-after", "0"]  # `steps_to_level` needs every episode
    for name, value in training.row.given(training.seed).items():
        words += flag(name, value)
    return words


def flag(name: str, value: Any) -> list[str]:
    """A setting as `freewheel train` reads it: a switch is turned off by no- before its last name."""
    if isinstance(value, bool):
        part, dot, last = name.rpartition(".")
        return [f"--{name}" if value else f"--{part}{dot}no-{last}"]
    return [f"--{name}", str(value)]


class Running:
    """One training in a process and a folder of its own, which both go when it is closed."""

    def __init__(self, training: Training) -> None:
        self.training, self.started_s = training, time.monotonic()
        self._folder = tempfile.TemporaryDirectory(prefix="freewheel-learn-")
        self._stdout, self._stderr = (Path(self._folder.name) / name for name in ("stdout", "stderr"))
        try:
            with self._stdout.open("wb") as stdout, self._stderr.open("wb") as stderr:
                self._process = subprocess.Popen(
                    command(training, Path(self._folder.name) / "runs"),
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                    env={**os.environ, **dict.fromkeys(THREAD_VARIABLES, "1")},
                    cwd=self._folder.name,  # no file of the user's directory takes the place of a module
                    start_new_session=True,  # Ctrl-C reaches only the bench process, which then closes this
                )
        except BaseException:
            self._folder.cleanup()
            raise

    def result(self) -> Trained | None:
        """What it gave, or None while it runs."""
        code = self._process.poll()
        seconds = time.monotonic() - self.started_s
        if code is None:
            if seconds < TRAIN_TIMEOUT_S:
                return None
            return self._failed(f"did not end within {TRAIN_TIMEOUT_S:.0f} s")
        if code != 0:
            return self._failed(f"ended with exit code {code}")
        try:
            figures = json.loads(self._stdout.read_text().splitlines()[-1])
            value, return_mean = float(figures["eval_return_mean"]), figures["return_mean"]
        except (IndexError, ValueError, KeyError, TypeError):
            return self._failed("ended without an eval_return_mean in the last line of its stdout")
        logs = list(Path(self._folder.name).glob("runs/*/episodes.csv"))
        steps_to = steps_to_level(logs[0], self.training.row.level) if logs else None
        return Trained(*self.training.key, value, return_mean, round(seconds, 1), steps_to)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):  # nobody of its session is left
            if self._process.returncode is None:
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._folder.cleanup()

    def _failed(self, what: str) -> Trained:
        lines = self._stderr.read_text(errors="replace").splitlines()[-TAIL_LINES:]
        said = "; its last lines were:\n  " + "\n  ".join(lines) if lines else ""
        return Trained(*self.training.key, None, problem=f"{self.training.name} {what}{said}")


def steps_to_level(episodes: Path, level: float) -> int | None:
    """The steps after which the last 100 episodes had this mean return for the first time; None if they never had."""
    last: deque[float] = deque(maxlen=WINDOW)
    with episodes.open() as file:
        for row in csv.DictReader(file):
            last.append(float(row["return"]))
            if len(last) == WINDOW and math.fsum(last) >= level * WINDOW:
                return int(row["step"])
    return None


def train_all(
    trainings: Sequence[Training],
    jobs: int,
    on_look: Callable[[list[str]], None],
    on_done: Callable[[Trained], None],
) -> None:
    """Runs them all, `jobs` at a time; `on_look` hears several times a second which ones run."""
    waiting, running = list(trainings), list[Running]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                training = waiting.pop(0)
                if training.is_outdated():
                    problem = (
                        f"{training.name} was not run: its preset changed after this command began. Call it again."
                    )
                    on_done(Trained(*training.key, None, problem=problem))
                else:
                    running.append(Running(training))
            on_look([one.training.name for one in running])
            time.sleep(POLL_S)
            for one in list(running):
                trained = one.result()
                if trained is not None:
                    running.remove(one)
                    one.close()
                    on_done(trained)
    finally:
        for one in running:
            one.close()


def _read(path: Path) -> list[Trained]:
    try:
        return [Trained(**kept) for kept in json.loads(path.read_text())["trainings"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"--out {path} is not a file that this command wrote ({type(error).__name__}: {error}). Name another one."
        ) from error
