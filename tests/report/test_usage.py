from __future__ import annotations

import pytest

from freewheel.report.phases import COUNTERS, PHASES, new_ledger
from freewheel.report.usage import Usage, infer_ms


def test_rates_and_shares_are_since_the_last_look() -> None:
    now = [100.0]
    usage = Usage(clock=lambda: now[0])
    assert usage.metrics({"steps": 0})["rate/steps_per_s"] == 0
    now[0] += 2
    found = usage.metrics({"steps": 300, "updates": 4}, {"actor": 0.5, "learner": 1.0})
    assert found["rate/steps_per_s"] == 150
    assert found["rate/updates_per_s"] == 0  # not counted before
    assert found["time/actor_share"] == pytest.approx(0.25)
    assert found["time/learner_share"] == pytest.approx(0.5)
    assert found["process/memory_mb"] > 10
    now[0] += 1
    found = usage.metrics({"steps": 400, "updates": 14}, {"actor": 0.5, "learner": 1.25})
    assert (found["rate/steps_per_s"], found["rate/updates_per_s"]) == (100, 10)
    assert (found["time/actor_share"], found["time/learner_share"]) == (0, 0.25)


def test_work_shows_as_cpu() -> None:
    usage = Usage()
    sum(i * i for i in range(300_000))
    assert usage.metrics({})["process/cpu_share"] > 0.1


def test_a_choice_takes_the_time_of_its_phase() -> None:
    ledger = new_ledger(2)
    assert infer_ms([ledger.snapshot(0), ledger.snapshot(1)]) == {}
    for role, choices in ((0, 3), (1, 5)):
        page = ledger.page(role)
        page.start(PHASES.index("infer"))
        page.count(COUNTERS.index("choices"), choices)
        page.enter(PHASES.index("env"))
    each = [ledger.snapshot(0), ledger.snapshot(1)]
    spent_ns = sum(one.phases_ns["infer"] for one in each)
    assert spent_ns > 0
    assert infer_ms(each)["time/infer_ms"] == pytest.approx(spent_ns / 8 / 1e6)
