"""Compiling is decided once, by what is left of the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from freewheel.machine import cache
from freewheel.machine.compile_decision import COMPARED, SETTLING, Comparison, decide, known_gain


@pytest.mark.parametrize(
    ("left_s", "wants", "word"),
    [
        (500.0, True, "Compiling the update"),
        (50.0, False, "unless an earlier run did"),
        (5.0, None, "Not compiling the update: it takes"),
        (0.25, None, "Not compiling the update: it takes"),
    ],
)
def test_it_is_compiled_when_the_rest_repays_it(left_s: float, wants: bool | None, word: str) -> None:
    choice = decide(left_s, None)
    assert word in choice.reason
    assert choice.chosen is wants


def test_what_was_no_faster_before_is_not_compiled_again() -> None:
    choice = decide(500.0, gain=1.01)
    assert choice.reason == (
        "Not compiling the update: on this machine it was 1.01 times as fast as eager (measured earlier)."
    )
    assert choice.chosen is None
    # 250 s of updates are left, of which a known gain of 1.1 saves less than compiling takes; the guess would not.
    for gain, wants in ((1.1, False), (4.0, True), (None, True)):
        assert decide(250.0, gain).chosen is wants


def test_what_compiling_would_save_is_told() -> None:
    assert decide(50.0, None).reason == (
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
