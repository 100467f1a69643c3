"""`freewheel bench ledger`: what a mark in the ledger costs, against a timer kept in a Python dict."""

from __future__ import annotations

import time
from collections.abc import Callable

from freewheel.bench.checks import check_rounds
from freewheel.bench.harness import OURS, Case, Measure, describe_machine, interleave, progress, report, warn_if_busy
from freewheel.bench.settings import LedgerSettings
from freewheel.bench.worker.window import Call, measure_us
from freewheel.report.ledger import Ledger

DICT_TIMER = "dict timer"
MARKS_PER_CALL = 100


def run(settings: LedgerSettings) -> list[Case]:
    """Measure, print, and give the cases."""
    check_rounds(settings.rounds, settings.seconds)
    python = Case("mark/python", "ns", baseline=DICT_TIMER)
    native = Case("mark/core", "ns", baseline=DICT_TIMER)
    page = Ledger(1, ["env", "infer"]).page(0)
    page.start(0)
    measures: dict[tuple[str, str], Measure] = {
        (python.name, OURS): _per_mark(mark_call(page.enter), settings.seconds),
        (native.name, OURS): lambda: page.mark_cost_ns(100_000),
        (python.name, DICT_TIMER): _per_mark(mark_call(dict_timer()), settings.seconds),
    }
    with progress("bench ledger", len(measures) * settings.rounds) as bar:
        machine = describe_machine({})
        warn_if_busy(machine)
        figures = interleave(measures, settings.rounds, bar)
    for case in (python, native):
        case.ours = figures[case.name, OURS]
        case.baselines[DICT_TIMER] = figures[python.name, DICT_TIMER]
    report("ledger", machine, [python, native], as_json=settings.json)
    return [python, native]


def mark_call(enter: Callable[[int], None]) -> Call:
    def call() -> None:
        for _ in range(MARKS_PER_CALL // 2):
            enter(0)
            enter(1)

    return call


def dict_timer() -> Callable[[int], None]:
    """Phases as a loop in Python would keep them: nobody else can read them while it runs."""
    spent, state = {0: 0, 1: 0}, [0, time.perf_counter_ns()]

    def enter(phase: int) -> None:
        now = time.perf_counter_ns()
        spent[state[0]] += now - state[1]
        state[0], state[1] = phase, now

    return enter


def _per_mark(call: Call, seconds: float) -> Measure:
    return lambda: measure_us(call, seconds) * 1e3 / MARKS_PER_CALL
