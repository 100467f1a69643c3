"""`python -m benchmarks locks`: training workers and an actor on one network, by three kinds of lock and by one owner."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import Any

import torch
from rich.table import Table

from benchmarks.locks import owner, threads
from benchmarks.locks.net import BATCH
from benchmarks.locks.threads import COUNTERS, DESIGNS, PHASES
from benchmarks.settings import LocksSettings
from freewheel.bench import svg
from freewheel.bench.checks import check_names, check_numbers, check_plot, check_rounds
from freewheel.bench.harness import (
    OURS,
    Case,
    describe_machine,
    median,
    print_report,
    progress,
    readable,
    shown,
    warn_if_busy,
)
from freewheel.errors import ConfigError
from freewheel.report.ledger import Ledger, Snapshot

WHAT = {
    OURS: "one owner of the optimiser, published weights",
    "one_lock": "one lock around everything",
    "small_lock": "a lock around backward and step",
    "rw_lock": "a reader/writer lock",
}
# Caches and the first batches, before the window.
WARM_SHARE = 0.25
UNIT = "updates/s"


@dataclass(frozen=True)
class Figures:
    """One window of one design."""

    updates_per_s: float
    acts_per_s: float
    wait_share: float  # of the training workers' time
    act_wait_share: float
    torn: int  # actions from weights of two versions
    stale: int  # updates whose gradient is of other weights than those it was applied to
    updates: int
    acts: int
    lag: float  # updates between the weights acted with and the newest

    @classmethod
    def between(cls, before: Sequence[Snapshot], after: Sequence[Snapshot], seconds: float) -> Figures:
        """The last role acts, the others train."""

        def counted(name: str, roles: slice) -> int:
            return sum(b.counters[name] - a.counters[name] for a, b in zip(before[roles], after[roles], strict=True))

        def waited(roles: slice) -> float:
            spent = {
                phase: sum(
                    b.phases_ns[phase] - a.phases_ns[phase] for a, b in zip(before[roles], after[roles], strict=True)
                )
                for phase in PHASES
            }
            return spent["wait"] / max(sum(spent.values()), 1)

        training, acting = slice(0, -1), slice(-1, None)
        updates, acts = counted("done", training), counted("done", acting)
        return cls(
            updates / seconds,
            acts / seconds,
            waited(training),
            waited(acting),
            counted("torn", acting),
            counted("stale", training),
            updates,
            acts,
            counted("lag", acting) / max(acts, 1),
        )


Measured = dict[tuple[str, int], list[Figures]]


def run(settings: LocksSettings) -> list[Case]:
    """Measure, print, plot, and give the cases."""
    check_rounds(settings.rounds, settings.seconds)
    check_numbers(workers=settings.workers)
    check_plot(settings.plot)
    for workers in settings.workers:
        if BATCH % workers:
            raise ConfigError(f"--workers {workers} must divide a batch of {BATCH} rows into equal shares.")
    others = list(DESIGNS) if settings.against is None else check_names(settings.against, DESIGNS, "design")
    torch.set_num_threads(1)
    machine = describe_machine({})
    warn_if_busy(machine)
    keys = [(design, workers) for workers in settings.workers for design in (OURS, *others)]
    measured: Measured = {key: [] for key in keys}
    with progress("bench locks", len(keys) * settings.rounds) as bar:
        for _ in range(settings.rounds):
            for design, workers in keys:
                bar.show(f"{design}, {workers} workers")
                measured[design, workers].append(measure(design, workers, settings.seconds))
                bar.advance()
    cases = make_cases(measured)
    svg.write(settings.plot, plot(measured, machine))
    print(f"the plot is in {settings.plot}", file=sys.stderr)
    print_report("locks", machine, cases, table(measured, machine), as_json=settings.json)
    return cases


def measure(design: str, workers: int, seconds: float) -> Figures:
    ledger = Ledger(workers + 1, PHASES, COUNTERS)
    if design == OURS:
        with owner.running(workers, ledger) as (processes, stop):
            return watch([partial(owner.own, processes, stop)], stop, ledger, seconds)
    shared = threads.Shared()
    jobs = [partial(threads.train, design, shared, ledger, role) for role in range(workers)]
    jobs.append(partial(threads.act, design, shared, ledger, workers))
    return watch(jobs, shared.stop, ledger, seconds)


def watch(jobs: Sequence[Callable[[], None]], stop: Event, ledger: Ledger, seconds: float) -> Figures:
    """Runs each job in a thread of its own and takes the difference of two looks at the ledger."""
    with ThreadPoolExecutor(len(jobs)) as pool:
        futures = [pool.submit(job) for job in jobs]
        try:
            wait(futures, WARM_SHARE * seconds, FIRST_EXCEPTION)
            before, start = snapshots(ledger), time.perf_counter()
            wait(futures, seconds, FIRST_EXCEPTION)
            after, end = snapshots(ledger), time.perf_counter()
        finally:
            stop.set()
        for future in futures:
            future.result()
    return Figures.between(before, after, end - start)


def snapshots(ledger: Ledger) -> list[Snapshot]:
    return [ledger.snapshot(role) for role in range(ledger.num_roles)]


def make_cases(measured: Measured) -> list[Case]:
    """One case per number of workers, and one with each design's best number."""
    counts = list(dict.fromkeys(workers for _, workers in measured))
    designs = list(dict.fromkeys(design for design, _ in measured))
    cases = [
        _case(f"locks/{workers}", {design: (design, workers) for design in designs}, measured) for workers in counts
    ]
    best = {
        design: max(((design, n) for n in counts), key=lambda key: median([f.updates_per_s for f in measured[key]]))
        for design in designs
    }
    return [*cases, _case("locks/best", best, measured)]


def _case(name: str, keys: dict[str, tuple[str, int]], measured: Measured) -> Case:
    speeds = {design: [figures.updates_per_s for figures in measured[key]] for design, key in keys.items()}
    case = Case(name, UNIT, speeds.pop(OURS), peers=speeds)
    case.extra = {
        "workers": {design: workers for design, (_, workers) in keys.items()},
        "designs": {design: summary(measured[key]) for design, key in keys.items()},
    }
    return case


def summary(windows: Sequence[Figures]) -> dict[str, Any]:
    """Medians of the rounds; what was seen is added up."""
    names = ("updates_per_s", "acts_per_s", "wait_share", "act_wait_share", "lag")
    found = {name: shown(median([getattr(figures, name) for figures in windows])) for name in names}
    torn, stale = sum(f.torn for f in windows), sum(f.stale for f in windows)
    return {
        **found,
        "torn": torn,
        "torn_share": shown(torn / max(sum(f.acts for f in windows), 1)),
        "stale": stale,
        "stale_share": shown(stale / max(sum(f.updates for f in windows), 1)),
    }


def table(measured: Measured, machine: dict[str, Any]) -> Table:
    made = Table(title=f"bench locks on {machine['cpu']}, {machine['cores']} cores, medians of the rounds")
    made.add_column("workers", justify="right")
    made.add_column("design", no_wrap=True)
    for title in ("updates/s", "acting/s", "workers wait", "actor waits", "torn", "stale", "lag"):
        made.add_column(title, justify="right")
    counts = list(dict.fromkeys(workers for _, workers in measured))
    for workers in counts:
        for design, number in measured:
            if number == workers:
                made.add_row(*_cells(design, workers, summary(measured[design, workers])))
        made.add_section()
    made.caption = (
        "torn: actions from weights of two versions; stale: updates of weights that others had changed since the forward; "
        "lag: updates between the weights acted with and the newest"
    )
    return made


def _cells(design: str, workers: int, figures: dict[str, Any]) -> list[str]:
    return [
        str(workers),
        f"{design}: {WHAT[design]}",
        readable(figures["updates_per_s"]),
        readable(figures["acts_per_s"]),
        f"{100 * figures['wait_share']:.0f} %",
        f"{100 * figures['act_wait_share']:.0f} %",
        f"{figures['torn']:,} ({100 * figures['torn_share']:.2g} %)",
        f"{figures['stale']:,} ({100 * figures['stale_share']:.2g} %)",
        f"{figures['lag']:.1f}",
    ]


def plot(measured: Measured, machine: dict[str, Any]) -> str:
    counts = list(dict.fromkeys(workers for _, workers in measured))
    designs = list(dict.fromkeys(design for design, _ in measured))
    found = {key: summary(windows) for key, windows in measured.items()}

    def panel(title: str, name: str, factor: float = 1.0) -> svg.Chart:
        series = {design: [factor * found[design, n][name] for n in counts] for design in designs}
        return svg.Chart(title, [f"{n} training worker{'s' * (n > 1)}" for n in counts], series)

    panels = [
        panel("updates per second", "updates_per_s"),
        panel("acting calls per second", "acts_per_s"),
        panel("share of the workers' time spent waiting, %", "wait_share", 100.0),
        panel("share of acting calls with torn weights, %", "torn_share", 100.0),
    ]
    return svg.bars(f"One network, trained and acted with at once ({machine['cores']} cores)", panels)
