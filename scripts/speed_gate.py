"""The speed gate: this checkout against the base commit, in paired and interleaved rounds with equal settings.

python scripts/speed_gate.py                            all cases, 7 to 25 rounds
python scripts/speed_gate.py --cases dqn,ppo/8 --json   some of them, with a JSON line at the end

Both sides are built and run in environments of their own, with a cache of compiled updates each. The two windows of a round run by
turns, a quarter of a second each. A case fails where the 95 %
interval of the ratio current/base lies below 0.97; where it straddles 0.97 more rounds are taken, and a case that is still open after
the last one has not failed. Exits with 1 if a case fails, with 2 if one could not be measured.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import builds
from rich.console import Console
from rich.table import Table
from speed_cases import CASES
from speed_stats import Interval, Verdict, interval, needs_round
from speed_turns import GateError, Worker, by_turns

WORKER = Path(__file__).with_name("speed_worker.py")
CACHES = builds.ROOT / "build" / "speed"
WARM_S = 1.0
# The first run of a case compiles its update: iqn took more than three minutes where both cores were taken.
RUN_S = 1_800
# In what a training tells when it goes on without compiled updates: then it would be another measurement.
FELL_BACK = "eager"
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

# The speeds of a case in units per second, base and current; the number is that of the side that begins.
Measure = Callable[[str, int], tuple[float, float]]


@dataclass
class Pairs:
    """The speeds of one case, a pair per round: base and current."""

    name: str
    speeds: list[tuple[float, float]] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        return [current / base for base, current in self.speeds]

    @property
    def interval(self) -> Interval:
        return interval(self.ratios)

    @property
    def verdict(self) -> Verdict:
        return self.interval.verdict()

    def add(self, measure: Measure) -> None:
        """The side that begins alternates, so that a drift of the machine favours neither."""
        self.speeds.append(measure(self.name, len(self.speeds) % 2))

    def record(self) -> dict[str, Any]:
        base, current = (statistics.median(side) for side in zip(*self.speeds, strict=True))
        low, mean, high = (round(value, 4) for value in (self.interval.low, self.interval.mean, self.interval.high))
        unit = f"{CASES[self.name].unit}/s" if self.name in CASES else ""
        figures = {"base": round(base, 1), "current": round(current, 1), "ratio": mean, "low": low, "high": high}
        return {"case": self.name, "unit": unit, **figures, "rounds": len(self.speeds), "verdict": self.verdict.value}


def run_rounds(
    names: Sequence[str], measure: Measure, least: int, most: int, show: Callable[[Pairs], None]
) -> list[Pairs]:
    """Round by round over all cases that need one: a disturbance of the machine then hits no case alone."""
    cases = [Pairs(name) for name in names]
    while wanting := [case for case in cases if needs_round(case.ratios, least, most)]:
        for case in wanting:
            case.add(measure)
            show(case)
    return cases


@dataclass(frozen=True)
class Sides:
    """Both interpreters, the base's first, and the folder of what each has compiled."""

    pythons: tuple[Path, Path]
    caches: tuple[Path, Path]
    clock: str

    def measure(self, name: str, begins: int, seconds: float, warm_s: float = WARM_S) -> tuple[float, float]:
        """One window of each side, by turns, in fresh processes."""
        with ExitStack() as stack:
            workers = [stack.enter_context(self._start(stack, name, side, seconds, warm_s)) for side in (0, 1)]
            by_turns(workers if begins == 0 else workers[::-1], RUN_S)
            base, current = (self._speed(worker, name, side) for side, worker in enumerate(workers))
        return base, current

    def _start(self, stack: ExitStack, name: str, side: int, seconds: float, warm_s: float) -> Worker:
        made = tempfile.TemporaryDirectory(prefix="freewheel-gate-", ignore_cleanup_errors=True)
        folder = Path(stack.enter_context(made))
        clock = self.clock if CASES[name].is_one_process else "wall"
        options = ["--warm-s", str(warm_s), "--seconds", str(seconds), "--clock", clock]
        command = [str(self.pythons[side]), str(WORKER), name, *options, *(["--current"] if side else [])]
        who = f"{name} of {('the base', 'this checkout')[side]}"
        return Worker(who, command, environment(self.caches[side], folder), folder)

    def _speed(self, worker: Worker, name: str, side: int) -> float:
        figures = worker.result()
        if not Path(figures["package"]).is_relative_to(self.pythons[side].parents[1]):
            raise GateError(f"{name} was measured with the wrong package: {figures['package']}")
        if CASES[name].settings["learner.compile"] == "on" and FELL_BACK in worker.output():
            raise GateError(f"{worker.name} did not have compiled updates:\n{worker.output()}")
        return float(figures[CASES[name].unit])


def environment(cache: Path, folder: Path) -> dict[str, str]:
    own = {"XDG_CACHE_HOME": str(cache), "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"), "TMPDIR": str(folder)}
    return {**builds.clean_environment(), **own, **dict.fromkeys(THREAD_VARIABLES, "1")}


def build_sides(base: str, clock: str) -> Sides:
    commit = builds.find_commit(base)
    pythons = (builds.build_revision(base), builds.build_checkout())
    caches = (CACHES / commit[:12], CACHES / "checkout")
    for cache in caches:
        cache.mkdir(parents=True, exist_ok=True)
    return Sides(pythons, caches, clock)


def show_table(cases: Sequence[Pairs]) -> None:
    table = Table(title="speed of this checkout against the base")
    for title in ("case", "unit", "base", "current", "ratio", "95 % interval", "rounds", "verdict"):
        table.add_column(title, justify="left" if title in ("case", "unit", "verdict") else "right")
    for found in (case.record() for case in cases):
        bounds = f"{found['low']:.3f} .. {found['high']:.3f}"
        speeds = [f"{found[side]:,.0f}" for side in ("base", "current")]
        last = [f"{found['ratio']:.3f}", bounds, str(found["rounds"]), found["verdict"]]
        table.add_row(found["case"], found["unit"], *speeds, *last)
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def parse(args: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES), help="comma-separated: %(default)s")
    parser.add_argument("--rounds", type=int, default=7, help="rounds of every case (%(default)s)")
    parser.add_argument("--most-rounds", type=int, default=25, help="rounds of a case that stays open (%(default)s)")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of each window (%(default)s)")
    parser.add_argument("--base", default=builds.BASE, metavar="REV", help="the commit to hold against (%(default).7s)")
    parser.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="cpu: for a busy machine, cases of one process count their CPU time in place of the time that passes",
    )
    parser.add_argument("--json", action="store_true", help="print the result as a JSON object on the last line")
    given = parser.parse_args(args)
    given.cases = given.cases.split(",")
    if unknown := [name for name in given.cases if name not in CASES]:
        parser.error(f"no case {', '.join(unknown)}; there are {', '.join(CASES)}")
    if given.rounds < 2 or given.most_rounds < given.rounds:
        parser.error("an interval needs --rounds of 2 or more, and --most-rounds of at least as many")
    return given


def main(args: Sequence[str] | None = None) -> int:
    given = parse(args)
    begun = time.monotonic()

    def tell(what: str) -> None:
        print(f"{time.monotonic() - begun:7.0f} s  {what}", file=sys.stderr, flush=True)

    def show(case: Pairs) -> None:
        found = case.interval
        bounds = f"{found.mean:.3f} ({found.low:.3f} .. {found.high:.3f})" if len(case.speeds) > 1 else "..."
        tell(f"{case.name}: round {len(case.speeds)}, ratio {case.ratios[-1]:.3f}, mean {bounds}")

    tell("building both sides")
    sides = build_sides(given.base, given.clock)
    for name in given.cases:
        tell(f"{name}: a first run of each side, which compiles and is not counted")
        sides.measure(name, 0, seconds=0.1, warm_s=0.0)
    cases = run_rounds(
        given.cases,
        lambda name, begins: sides.measure(name, begins, given.seconds),
        given.rounds,
        given.most_rounds,
        show,
    )
    show_table(cases)
    if given.json:
        how = {"base": builds.find_commit(given.base), "clock": given.clock, "load_1min": round(os.getloadavg()[0], 2)}
        print(json.dumps({"gate": "speed", **how, "cases": [case.record() for case in cases]}), flush=True)
    return 1 if any(case.verdict is Verdict.SLOWER for case in cases) else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that both workers end too
    try:
        sys.exit(main())
    except (GateError, builds.BuildError) as error:
        print(error, file=sys.stderr)
        sys.exit(2)
