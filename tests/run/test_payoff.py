"""Compiling is decided once, by what is left of the run."""

from __future__ import annotations

import pytest

from freewheel.config import Config
from freewheel.run.payoff import COMPARED, LOOK_AFTER, SETTLING, Comparison, Decision


@pytest.mark.parametrize(
    ("steps", "update_s", "wants", "word"),
    [
        (2_000_000, 1e-3, True, "compiling"),  # 500 s of updates are left
        (200_000, 1e-3, False, "unless it was before"),  # 50 s
        (20_000, 1e-3, None, "not compiled"),  # 5 s
        (20_000, 1e-1, True, "compiling"),
    ],
)
def test_it_is_compiled_when_the_rest_repays_it(steps: int, update_s: float, wants: bool | None, word: str) -> None:
    decision = Decision(Config("CartPole-v1", steps=steps))
    assert decision.ask(0, LOOK_AFTER - 1, update_s) is None
    note = decision.ask(0, LOOK_AFTER, update_s)
    assert note is not None
    assert word in note
    assert decision.wants is wants
    assert decision.ask(0, 10**6, update_s * 100) is None  # once


def test_the_end_of_a_run_repays_nothing() -> None:
    decision = Decision(Config("CartPole-v1", steps=2_000_000))
    decision.ask(1_999_000, LOOK_AFTER, 1e-3)
    assert decision.wants is None


def test_what_was_no_faster_before_is_not_compiled_again() -> None:
    decision = Decision(Config("CartPole-v1", steps=2_000_000), gain=1.01)
    assert decision.ask(0, LOOK_AFTER, 1e-3) == (
        "the update is not compiled: tried before on this machine it was 1.01 times as fast."
    )
    assert decision.wants is None
    # 250 s of updates are left, of which a known gain of 1.1 saves less than compiling takes; the guess would not.
    for gain, wants in ((1.1, False), (4.0, True), (None, True)):
        decision = Decision(Config("CartPole-v1", steps=1_000_000), gain)
        decision.ask(0, LOOK_AFTER, 1e-3)
        assert decision.wants is wants


def test_compiled_updates_are_compared_with_the_newest_eager_ones_once() -> None:
    comparison = Comparison()
    for i in range(2 * COMPARED):
        assert comparison.add(9.0 if i < COMPARED else 2.0, is_compiled=False) is None
    for i in range(SETTLING + COMPARED - 1):
        assert comparison.add(100.0 if i < SETTLING else 1.0, is_compiled=True) is None
    assert comparison.add(1.0, is_compiled=True) == (2.0, 1.0)
    assert comparison.add(1.0, is_compiled=True) is None


def test_what_was_compiled_from_the_start_is_compared_with_nothing() -> None:
    comparison = Comparison()
    assert {comparison.add(1.0, is_compiled=True) for _ in range(100)} == {None}
