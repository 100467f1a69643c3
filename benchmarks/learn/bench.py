"""`python -m benchmarks learn`: trains the table of envs and algorithms, each row against its published figure."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.learn.runs import Results, Trained, Training, train_all
from benchmarks.learn.table import Row, choose
from benchmarks.settings import LearnSettings
from freewheel.bench.harness import OURS, describe_machine, median, progress, shown
from freewheel.errors import ConfigError


@dataclass(frozen=True)
class Learned:
    """A row with what its seeds gave."""

    row: Row
    trained: tuple[Trained, ...]

    @property
    def returns(self) -> list[float]:
        return [one.eval_return_mean for one in self.trained if one.eval_return_mean is not None]

    @property
    def median(self) -> float | None:
        """Over the seeds that ran; a row with one that failed has not passed, whatever it says."""
        return median(self.returns) if self.returns else None

    @property
    def has_passed(self) -> bool:
        if not self.trained or len(self.returns) < len(self.trained):
            return False
        most = math.inf if self.row.most is None else self.row.most
        return self.row.goal <= median(self.returns) <= most

    def record(self) -> dict[str, Any]:
        """The row as it stands in the JSON line; returns have no ratio, they may be negative."""
        row, value = self.row, self.median
        record = {
            "case": f"learn/{row.name}",
            OURS: None if value is None else shown(value),
            "unit": "return",
            "peers": {"published": row.published},
            "ratio": None,
            "goal": row.goal,
            **({} if row.most is None else {"most": row.most}),
            "passed": self.has_passed,
            "steps": row.steps,
            "seeds": {str(one.seed): one.eval_return_mean for one in self.trained},
            "seconds": [one.seconds for one in self.trained],
            "level": row.level,
            "steps_to_level": [one.steps_to for one in self.trained],
            "source": row.source,
        }
        problems = {str(one.seed): one.problem for one in self.trained if one.problem}
        return {**record, "problems": problems} if problems else record


def run(settings: LearnSettings) -> list[Learned]:
    """Train, print, and give the rows."""
    rows = [row.in_runtime(settings.runtime) for row in choose(settings.only)]
    if settings.compile:
        rows = [row.compiled() for row in rows]
    seeds = list(dict.fromkeys(settings.seeds))
    if not seeds or min(seeds) < 0:
        raise ConfigError(f"--seeds {','.join(map(str, settings.seeds))} must be one or more numbers of at least 0.")
    if settings.jobs < 1:
        raise ConfigError(f"--jobs {settings.jobs} must be at least 1.")
    trainings = [Training(row, seed, row.fingerprint(seed)) for row in rows for seed in seeds]
    results = Results(settings.out)
    machine = describe_machine({})
    missing = [training for training in trainings if results.of(training) is None]
    if len(missing) < len(trainings):
        print(f"{len(trainings) - len(missing)} of {len(trainings)} are in {settings.out} already.", file=sys.stderr)
    with progress("bench learn", len(missing)) as bar:

        def done(trained: Trained) -> None:
            results.add(trained)
            bar.advance()
            print(_line(trained), file=sys.stderr)

        train_all(missing, settings.jobs, lambda names: bar.show(", ".join(names)), done)
    learned = [Learned(row, _of(row, trainings, results)) for row in rows]
    report(machine, learned, seeds, as_json=settings.json)
    return learned


def report(machine: Mapping[str, Any], learned: Sequence[Learned], seeds: Sequence[int], *, as_json: bool) -> None:
    """The table, and as the last line the JSON object when it was asked for."""
    Console(width=None if sys.stdout.isatty() else 160).print(table(learned, seeds))
    if as_json:
        line = {"bench": "learn", "machine": machine, "cases": [one.record() for one in learned]}
        print(json.dumps(line), flush=True)


def table(learned: Sequence[Learned], seeds: Sequence[int]) -> Table:
    made = Table(title="bench learn: greedy evaluation of 100 episodes")
    made.add_column("case", no_wrap=True)
    for title in ("steps", *(f"seed {seed}" for seed in seeds), "median", "published", "to pass", "steps to level"):
        made.add_column(title, justify="right")
    made.add_column("verdict")
    for one in learned:
        row = one.row
        cells = [_figure(trained.eval_return_mean) for trained in one.trained]
        bounds = [_figure(one.median), _figure(row.published), _figure(row.goal), _steps(one)]
        made.add_row(row.name, f"{row.steps:,}", *cells, *bounds, "pass" if one.has_passed else "[bold]FAIL[/bold]")
    return made


def _of(row: Row, trainings: Sequence[Training], results: Results) -> tuple[Trained, ...]:
    found = [results.of(training) for training in trainings if training.row == row]
    return tuple(trained for trained in found if trained is not None)


def _line(trained: Trained) -> str:
    if trained.problem is not None:
        return trained.problem
    return f"{trained.row} seed {trained.seed}: {trained.eval_return_mean:.1f} after {trained.seconds:.0f} s"


def _steps(one: Learned) -> str:
    """The median; a seed that never got there counts as the last."""
    steps = sorted(math.inf if trained.steps_to is None else trained.steps_to for trained in one.trained)
    middle = steps[len(steps) // 2] if steps else math.inf
    return "never" if middle == math.inf else f"{middle:,.0f}"


def _figure(value: float | None) -> str:
    return "failed" if value is None else f"{value:.1f}"
