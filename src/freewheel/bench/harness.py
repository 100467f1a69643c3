"""What all benchmarks share: interleaved rounds, the figures of a case, the table and the JSON line."""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import platform
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from freewheel.machine.cores import num_cores

OURS = "ours"

# A second program that computes all the time adds 1 to the load; this is well on the way to it.
BUSY_LOAD = 0.7

Measure = Callable[[], float]
Machine = dict[str, Any]


@dataclass
class Case:
    """One line of the table: everybody's figures over the rounds, in one unit.

    The ratio is against the best of `peers`, or against the one of `baselines` that `baseline` names.
    """

    name: str
    unit: str
    ours: list[float] = field(default_factory=list)
    peers: dict[str, list[float]] = field(default_factory=dict)
    baselines: dict[str, list[float]] = field(default_factory=dict)
    baseline: str | None = None
    goal: float | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        """How many times better ours is, whatever the unit; None when there is nobody to compare with."""
        others = list(self.peers.values()) if self.baseline is None else [self.baselines[self.baseline]]
        return times_better(self.unit, median(self.ours), [median(figures) for figures in others])

    def record(self) -> dict[str, Any]:
        """The case as it stands in the JSON line."""
        ratio = self.ratio
        record: dict[str, Any] = {
            "case": self.name,
            "ours": shown(median(self.ours)),
            "unit": self.unit,
            "peers": {name: shown(median(figures)) for name, figures in self.peers.items()},
            "ratio": None if ratio is None or math.isinf(ratio) else shown(ratio),
        }
        if self.baselines:
            record["baselines"] = {name: shown(median(figures)) for name, figures in self.baselines.items()}
        if self.baseline is not None:
            record["baseline"] = self.baseline
        if self.goal is not None:
            record["goal"] = shown(self.goal)
        everybody = {OURS: self.ours, **self.peers, **self.baselines}
        record["spread"] = {name: [shown(min(f)), shown(max(f))] for name, f in everybody.items()}
        return {**record, **self.extra}


def times_better(unit: str, ours: float, others: Sequence[float]) -> float | None:
    """Against the best of the others; rates and closed accounts are better when higher, times, sizes and counts when lower."""
    if not others:
        return None
    if unit.endswith(("/s", "closed")):
        return ours / max(others)
    if ours == 0:  # nothing against nothing is as good
        return 1.0 if min(others) == 0 else math.inf
    return min(others) / ours


def median(figures: Sequence[float]) -> float:
    return float(statistics.median(figures))


def shown(figure: float) -> float:
    """Four significant digits: more than a round repeats."""
    return float(f"{figure:.4g}")


def interleave(
    measures: Mapping[tuple[str, str], Measure], rounds: int, bar: Bar
) -> dict[tuple[str, str], list[float]]:
    """Run every (case, who) once per round, in turn: a disturbance of the machine then hits all alike."""
    figures: dict[tuple[str, str], list[float]] = {key: [] for key in measures}
    for _ in range(rounds):
        for (case, who), measure in measures.items():
            bar.show(f"{case} {who}")
            figures[case, who].append(measure())
            bar.advance()
    return figures


class Bar:
    """A progress bar that says what is being done; its length may grow on the way.

    It is drawn between measurements only: a thread that redraws it would compete with what is being measured.
    """

    def __init__(self, bar: Progress, title: str, total: int) -> None:
        self._bar, self._total = bar, total
        self._task = bar.add_task(title, total=total, now="")

    def show(self, now: str) -> None:
        self._bar.update(self._task, now=now, refresh=True)

    def advance(self) -> None:
        self._bar.update(self._task, advance=1)

    def grow(self, more: int) -> None:
        self._total += more
        self._bar.update(self._task, total=self._total)


@contextmanager
def progress(title: str, total: int) -> Iterator[Bar]:
    """A bar on stderr, so that stdout holds nothing but the result."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[now]}", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        yield Bar(bar, title, total)


def describe_machine(peer_versions: Mapping[str, str]) -> Machine:
    """What a reader needs to judge the figures; the load tells whether somebody else was computing."""
    packages = ("freewheel", "torch", "numpy")
    return {
        "cpu": cpu_name(),
        "cores": num_cores(),
        "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": {**{name: installed_version(name) for name in packages}, **peer_versions},
        "threads": 1,
        "load_1min": round(os.getloadavg()[0], 2),
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def warn_if_busy(machine: Mapping[str, Any]) -> None:
    """Other work on the machine shows as spread, and not always as that; say so before the run, not after."""
    if machine["load_1min"] > BUSY_LOAD:
        print(
            f"this machine is busy (load {machine['load_1min']} on {machine['cores']} cores): expect uneven figures",
            file=sys.stderr,
        )


def installed_version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def report(bench: str, machine: Mapping[str, Any], cases: Sequence[Case], *, as_json: bool) -> None:
    """The table, and as the last line the JSON object when it was asked for."""
    print_report(bench, machine, cases, table(bench, machine, cases), as_json=as_json)


def print_report(bench: str, machine: Mapping[str, Any], cases: Sequence[Case], made: Table, *, as_json: bool) -> None:
    """The same with a table of the benchmark's own."""
    # A pipe has no width; 160 columns hold every peer and way beside the longest case name.
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(made)
    for note in dict.fromkeys(note for case in cases for note in notes(case, common_baselines(cases))):
        console.print(escape(note), highlight=False)
    if as_json:
        line = {"bench": bench, "machine": machine, "cases": [case.record() for case in cases]}
        print(json.dumps(line), flush=True)


def table(bench: str, machine: Mapping[str, Any], cases: Sequence[Case]) -> Table:
    peers = list(dict.fromkeys(name for case in cases for name in case.peers))
    baselines = common_baselines(cases)
    made = Table(title=f"bench {bench} on {machine['cpu']}, {machine['cores']} cores, medians of the rounds")
    for title in ("case", "unit"):
        made.add_column(title, no_wrap=True)
    for title in (OURS, *peers, *(f"({name})" for name in baselines), "ratio", "goal"):
        made.add_column(title, justify="right")
    for case in cases:
        figures = {OURS: case.ours, **case.peers, **{f"({name})": f for name, f in case.baselines.items()}}
        cells = [readable(median(figures[who])) if who in figures else "" for who in _columns(peers, baselines)]
        ratio, goal = case.ratio, case.goal
        verdict = "" if ratio is None else f"{ratio:.2f}x"
        made.add_row(escape(case.name), case.unit, *cells, verdict, "" if goal is None else f"{goal:.2g}x")
    return made


def common_baselines(cases: Sequence[Case]) -> list[str]:
    """Those that more than one case has get a column; the others a line below the table."""
    names = [name for case in cases for name in case.baselines]
    return [name for name in dict.fromkeys(names) if names.count(name) > 1]


def notes(case: Case, in_columns: Sequence[str]) -> list[str]:
    beside = [f"{name} {readable(median(f))}" for name, f in case.baselines.items() if name not in in_columns]
    said: list[str] = case.extra.get("notes", [])
    return said + ([f"{case.name}, beside it in {case.unit}: {', '.join(beside)}."] if beside else [])


def _columns(peers: Sequence[str], baselines: Sequence[str]) -> list[str]:
    return [OURS, *peers, *(f"({name})" for name in baselines)]


def readable(figure: float) -> str:
    """12.3, 1,234 or 1.23 M: what fits a column."""
    if figure >= 1e6:
        return f"{figure / 1e6:.2f} M"
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.1f}"
