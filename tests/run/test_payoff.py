"""Compiling is decided once, by what is left of the run."""

from __future__ import annotations

import pytest

from freewheel.config import Config
from freewheel.run.payoff import LOOK_AFTER, Decision


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
