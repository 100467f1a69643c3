"""Compiling is decided once, by what is left of the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from freewheel.machine import cache
from freewheel.machine.compile_decision import COMPARED, LOOK_AFTER, SETTLING, Comparison, Decision, known_gain


@pytest.mark.parametrize(
    ("left", "update_s", "wants", "word"),
    [
        (500_000, 1e-3, True, "Compiling the update"),  # 500 s of updates are left
        (50_000, 1e-3, False, "unless an earlier run did"),  # 50 s
        (5_000, 1e-3, None, "Not compiling the update: it takes"),  # 5 s
        (5_000, 1e-1, True, "Compiling the update"),
    ],
)
def test_it_is_compiled_when_the_rest_repays_it(left: int, update_s: float, wants: bool | None, word: str) -> None:
    decision = Decision()
    assert decision.ask(left, LOOK_AFTER - 1, update_s) is None
    note = decision.ask(left, LOOK_AFTER, update_s)
    assert note is not None
    assert word in note
    assert decision.wants is wants
    assert decision.ask(left, 10**6, update_s * 100) is None  # once


def test_the_end_of_a_run_repays_nothing() -> None:
    decision = Decision()
    decision.ask(250, LOOK_AFTER, 1e-3)
    assert decision.wants is None


def test_what_was_no_faster_before_is_not_compiled_again() -> None:
    decision = Decision(gain=1.01)
    assert decision.ask(500_000, LOOK_AFTER, 1e-3) == (
        "Not compiling the update: on this machine it was 1.01 times as fast as eager (measured earlier)."
    )
    assert decision.wants is None
    # 250 s of updates are left, of which a known gain of 1.1 saves less than compiling takes; the guess would not.
    for gain, wants in ((1.1, False), (4.0, True), (None, True)):
        decision = Decision(gain)
        decision.ask(250_000, LOOK_AFTER, 1e-3)
        assert decision.wants is wants


def test_what_compiling_would_save_is_told() -> None:
    note = Decision().ask(50_000, LOOK_AFTER, 1e-3)
    assert note == (
        "Not compiling the update, unless an earlier run did: it takes about 60 s and would save 20 s of the 50 s left. "
        "Force it with --compile on."
    )


@pytest.mark.parametrize(
    ("compiled_s", "chosen", "reason"),
    [
        (1.0, "compiled", "Keeping the compiled update: compiled 1e+03 ms, eager 2e+03 ms."),
        (1.97, "eager", "Going back to eager updates: compiled 1.97e+03 ms, eager 2e+03 ms."),
    ],
)
def test_compiled_updates_are_compared_with_the_newest_eager_ones_once(
    compiled_s: float, chosen: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    comparison = Comparison("key")
    for i in range(2 * COMPARED):
        assert comparison.add(9.0 if i < COMPARED else 2.0, is_compiled=False) is None
    for i in range(SETTLING + COMPARED - 1):
        assert comparison.add(100.0 if i < SETTLING else compiled_s, is_compiled=True) is None
    assert known_gain("key") is None
    choice = comparison.add(compiled_s, is_compiled=True)
    assert choice is not None
    assert (choice.chosen, choice.reason) == (chosen, reason)
    assert choice.times == {"eager": [2.0] * COMPARED, "compiled": [compiled_s] * COMPARED}
    assert known_gain("key") == 2.0 / compiled_s
    assert comparison.add(1.0, is_compiled=True) is None


def test_only_a_gain_is_a_known_gain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for found, gain in ((1.5, 1.5), ("fast", None), (-1.0, None)):
        cache.remember("key", {"compiled": found})
        assert known_gain("key") == gain


def test_what_was_compiled_from_the_start_is_compared_with_nothing() -> None:
    comparison = Comparison("key")
    assert {comparison.add(1.0, is_compiled=True) for _ in range(100)} == {None}
