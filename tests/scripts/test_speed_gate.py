"""The speed gate decides by the interval of paired ratios: it sees a loss, takes more rounds where it is unsure, and knows when to stop."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import speed_gate
from speed_cases import CASES, RENAMED
from speed_gate import Pairs, run_rounds
from speed_stats import Interval, Verdict, interval, needs_round
from speed_worker import Meter

from freewheel import Moment
from freewheel.config import assemble


def test_the_interval_is_students_of_the_logarithms() -> None:
    found = interval([1.0, 1.1, 0.9, 1.05])
    logs = np.log([1.0, 1.1, 0.9, 1.05])
    reach = 3.182446 * logs.std(ddof=1) / 2  # t of 3 degrees of freedom
    assert found.mean == pytest.approx(np.exp(logs.mean()))
    assert (found.low, found.high) == pytest.approx(
        (np.exp(logs.mean() - reach), np.exp(logs.mean() + reach)), rel=1e-6
    )


def test_the_interval_of_inverse_ratios_is_inverse() -> None:
    one, two = interval([0.9, 0.95, 1.2]), interval([1 / 0.9, 1 / 0.95, 1 / 1.2])
    assert (one.low, one.high) == pytest.approx((1 / two.high, 1 / two.low))


def test_one_pair_decides_nothing() -> None:
    assert interval([0.5]) == Interval(0.0, 0.5, math.inf)
    assert interval([0.5]).verdict() is Verdict.OPEN


def test_the_true_ratio_lies_within_nineteen_times_of_twenty() -> None:
    chance = np.random.default_rng(0)
    found = [interval(np.exp(chance.normal(math.log(0.98), 0.05, 7)).tolist()) for _ in range(2_000)]
    assert np.mean([one.low <= 0.98 <= one.high for one in found]) == pytest.approx(0.95, abs=0.015)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.90, 0.969, Verdict.SLOWER),
        (0.96, 0.99, Verdict.OPEN),
        (0.90, 0.97, Verdict.OPEN),
        (0.97, 0.99, Verdict.HOLDS),
        (1.01, 1.20, Verdict.HOLDS),
    ],
)
def test_only_an_interval_below_the_bound_fails(low: float, high: float, verdict: Verdict) -> None:
    assert Interval(low, (low + high) / 2, high).verdict() is verdict


def test_more_rounds_are_taken_only_where_the_interval_straddles_the_bound() -> None:
    assert needs_round([1.0, 1.01], 3, 25)  # too few, whatever they say
    assert not needs_round([1.0, 1.01, 1.005], 3, 25)
    assert not needs_round([0.8, 0.81, 0.805], 3, 25)
    assert needs_round([0.9, 1.04, 0.97], 3, 25)
    assert not needs_round([0.9, 1.04, 0.97] * 9, 3, 25)


def measured(ratio: dict[str, float], noise: float) -> tuple[Callable[[str, int], tuple[float, float]], list[Any]]:
    """Speeds as a noisy machine would give them, and what was measured in which order."""
    chance: Any = np.random.default_rng(1)
    order: list[Any] = []

    def measure(name: str, begins: int) -> tuple[float, float]:
        order.append((name, begins))
        base, current = 1_000 * np.exp(chance.normal(0, noise, 2))
        return float(base), float(current * ratio[name])

    return measure, order


def test_rounds_are_interleaved_and_as_many_as_needed() -> None:
    measure, order = measured({"even": 1.0, "slow": 0.9, "unsure": 0.97}, 0.005)
    cases = run_rounds(["even", "slow", "unsure"], measure, 4, 10, lambda case: None)
    assert [case.verdict for case in cases] == [Verdict.HOLDS, Verdict.SLOWER, Verdict.OPEN]
    assert [len(case.speeds) for case in cases] == [4, 4, 10]
    assert [name for name, _ in order[:6]] == ["even", "slow", "unsure"] * 2
    assert [begins for _, begins in order[:6]] == [0, 0, 0, 1, 1, 1]  # the side that begins alternates


def test_a_record_has_what_the_table_shows() -> None:
    pairs = Pairs("dqn", [(100.0, 90.0), (200.0, 180.0), (100.0, 91.0)])
    found = pairs.record()
    assert (found["case"], found["unit"], found["base"], found["current"]) == ("dqn", "steps/s", 100.0, 91.0)
    assert (found["rounds"], found["verdict"]) == (3, "SLOWER")
    assert found["ratio"] == pytest.approx(0.903, abs=1e-3)


@pytest.mark.parametrize(("ratio", "code"), [(1.0, 0), (0.8, 1)])
def test_a_case_that_is_slower_fails_the_gate(
    ratio: float, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Sides:
        def measure(self, name: str, begins: int, seconds: float, warm_s: float = 0.0) -> tuple[float, float]:
            return 1.0, ratio

    monkeypatch.setattr(speed_gate, "build_sides", lambda base, clock: Sides())
    monkeypatch.setattr(speed_gate.builds, "find_commit", lambda base: "abc")
    assert speed_gate.main(["--cases", "dqn,ppo/8", "--rounds", "3", "--json"]) == code
    shown = capsys.readouterr()
    assert '"verdict": "SLOWER"' in shown.out or code == 0
    assert "ppo/8: round 3" in shown.err


@pytest.mark.parametrize("options", [["--cases", "dqn,chess"], ["--rounds", "1"], ["--rounds", "30"]])
def test_options_that_cannot_work_are_refused(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        speed_gate.parse(options)
    assert "no case chess" in capsys.readouterr().err or "--rounds" in options


def test_the_window_opens_when_training_is_under_way_and_is_warm() -> None:
    now, marks = [0.0], []
    meter = Meter(CASES["learner/dqn"], 1.0, 2.0, lambda: now[0], marks.append)
    moment = Moment()
    for second in range(8):
        now[0], moment.step, moment.updates = float(second), 10 * second, 40 * second
        meter.on_update(moment)  # counts are not of one moment here
        meter.on_step(moment)
        # Under way at 64 updates (second 2), open from 3 to 5.
        assert (len(marks), moment.is_stopping) == ((second >= 3) + (second >= 5), second >= 5)
    figures = json.loads(marks[1])
    assert (figures["steps"], figures["updates"], figures["seconds"]) == (10.0, 40.0, 2.0)


@pytest.mark.parametrize("name", CASES)
def test_every_case_is_accepted(name: str) -> None:
    settings = {RENAMED.get(key, key): value for key, value in CASES[name].settings.items()}
    assemble(CASES[name].env, {"algo": CASES[name].algo, **settings, **CASES[name].added}, "none")
