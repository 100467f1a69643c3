"""V-trace: solved by hand, against a loop, and the same as GAE where the policy has not changed."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from freewheel.algos.appo import vtrace
from freewheel.algos.ppo import advantages

Array = np.ndarray[Any, Any]


def row(*values: float) -> Array:
    return np.array([values], np.float32)


def flags(*values: int) -> Array:
    return np.array([values], np.bool_)


def test_two_steps_solved_by_hand() -> None:
    # gamma 0.5, bounds 1. Ratios 3 and 0.5: rho = c = 1 and 0.5. The last step is cut and bootstraps from 8.
    # delta: 1 + 0.5 * 2 - 4 = -2; 2 + 0.5 * 8 - 2 = 4.
    # goal - value: 0.5 * 4 = 2; -2 + 0.5 * 2 = -1. Advantages: 0.5 * 4; 1 + 0.5 * goal of the next (4) - 4.
    goal, advantage = vtrace(row(1, 2), row(4, 2), row(2, 8), flags(0, 0), flags(1, 0), row(3, 0.5), 0.5)
    np.testing.assert_allclose(goal, row(3, 4))
    np.testing.assert_allclose(advantage, row(-1, 2))


def test_the_bounds_are_of_the_two_weights() -> None:
    given_to: tuple[Any, ...] = (row(1, 2), row(4, 2), row(2, 8), flags(0, 0), flags(1, 0), row(3, 3), 0.5, 1.0)
    # rho 2: goal - value is 2 * 4 = 8 for the last; 2 * -2 + 0.5 * c * 8 for the first.
    np.testing.assert_allclose(vtrace(*given_to, 2.0, 1.0)[0], row(4 - 4 + 4, 2 + 8))
    np.testing.assert_allclose(vtrace(*given_to, 2.0, 3.0)[0], row(4 - 4 + 12, 2 + 8))


def naive(
    reward: Array, value: Array, next_value: Array, over: Array, goes_on: Array, ratio: Array, *rest: float
) -> tuple[Array, Array]:
    """Row by row, as the papers write it; where nothing goes on the value itself stands for the next goal."""
    gamma, lam, rho_bar, c_bar = rest
    goals, found = np.zeros(reward.shape), np.zeros(reward.shape)
    for lane in range(reward.shape[0]):
        for t in reversed(range(reward.shape[1])):
            rho, c = min(float(ratio[lane, t]), rho_bar), lam * min(float(ratio[lane, t]), c_bar)
            after = 0.0 if over[lane, t] else float(next_value[lane, t])
            delta = float(reward[lane, t]) + gamma * after - float(value[lane, t])
            more = goals[lane, t + 1] - float(value[lane, t + 1]) if goes_on[lane, t] else 0.0
            goals[lane, t] = float(value[lane, t]) + rho * delta + gamma * c * more
            found[lane, t] = rho * (delta + gamma * lam * more)
    return goals, found


floats = st.floats(-10, 10, width=32)
unit = st.floats(0, 1)


@given(
    data=st.data(),
    lanes=st.integers(1, 4),
    places=st.integers(1, 40),
    gamma=unit,
    lam=unit,
    rho_bar=st.floats(0.1, 2),
    c_bar=st.floats(0, 1),
)
@settings(max_examples=150, deadline=None)
def test_it_equals_a_loop(
    data: Any, lanes: int, places: int, gamma: float, lam: float, rho_bar: float, c_bar: float
) -> None:
    shape = (lanes, places)
    reward, value, next_value = (data.draw(hnp.arrays(np.float32, shape, elements=floats)) for _ in range(3))
    ratio = data.draw(hnp.arrays(np.float32, shape, elements=st.floats(0, 5, width=32)))
    # Terminated steps, truncated ones and cuts (neither, and nothing goes on) in any mixture.
    over, goes_on = (data.draw(hnp.arrays(np.bool_, shape)) for _ in range(2))
    goes_on &= ~over
    goes_on[:, -1] = False
    rest = (gamma, lam, rho_bar, c_bar)
    ours = vtrace(reward, value, next_value, over, goes_on, ratio, *rest)
    theirs = naive(reward, value, next_value, over, goes_on, ratio, *rest)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.dtype == np.float32
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=2e-3)


@given(data=st.data(), places=st.integers(1, 30), gamma=unit, lam=unit)
@settings(max_examples=50, deadline=None)
def test_a_policy_that_has_not_changed_gives_gae(data: Any, places: int, gamma: float, lam: float) -> None:
    shape = (2, places)
    reward, value, next_value = (data.draw(hnp.arrays(np.float32, shape, elements=floats)) for _ in range(3))
    over, goes_on = (data.draw(hnp.arrays(np.bool_, shape)) for _ in range(2))
    goes_on &= ~over
    goes_on[:, -1] = False
    same = np.ones(shape, np.float32)
    goal, advantage = vtrace(reward, value, next_value, over, goes_on, same, gamma, lam)
    gae = advantages(reward, value, next_value, over, goes_on, gamma, lam)
    np.testing.assert_allclose(advantage, gae, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(goal, value + gae, rtol=1e-4, atol=1e-3)
