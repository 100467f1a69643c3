"""Advantages: solved by hand, against a loop, and nothing that leaks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from freewheel.algos.ppo import advantages, explained, running_returns, scan

Array = np.ndarray[Any, Any]


def row(*values: float) -> Array:
    return np.array([values], np.float32)


def flags(*values: int) -> Array:
    return np.array([values], np.bool_)


def test_three_steps_solved_by_hand() -> None:
    # gamma 0.5, lambda 0.5. The last step is cut: it bootstraps from 8.
    # delta: 1 + 0.5 * 2 - 4 = -2; 2 + 0.5 * 6 - 2 = 3; 3 + 0.5 * 8 - 6 = 1.
    # adv: 1; 3 + 0.25 * 1 = 3.25; -2 + 0.25 * 3.25 = -1.1875.
    found = advantages(row(1, 2, 3), row(4, 2, 6), row(2, 6, 8), flags(0, 0, 0), flags(1, 1, 0), 0.5, 0.5)
    np.testing.assert_allclose(found, row(-1.1875, 3.25, 1))


def test_a_terminated_step_has_no_value_after_it_and_a_truncated_one_has() -> None:
    ends = {"terminated": flags(1, 0), "truncated": flags(0, 0)}
    found = {
        name: advantages(row(1, 5), row(2, 3), row(10, 20), over, flags(0, 0), 0.5, 0.9) for name, over in ends.items()
    }
    assert found["terminated"][0, 0] == 1 - 2
    assert found["truncated"][0, 0] == 1 + 0.5 * 10 - 2
    assert found["terminated"][0, 1] == found["truncated"][0, 1] == 5 + 0.5 * 20 - 3


def naive(
    reward: Array, value: Array, next_value: Array, over: Array, goes_on: Array, gamma: float, lam: float
) -> Array:
    found = np.zeros(reward.shape, np.float64)
    for lane in range(reward.shape[0]):
        later = 0.0
        for t in reversed(range(reward.shape[1])):
            delta = reward[lane, t] + gamma * next_value[lane, t] * (not over[lane, t]) - value[lane, t]
            later = float(delta) + gamma * lam * later * bool(goes_on[lane, t])
            found[lane, t] = later
    return found


floats = st.floats(-10, 10, width=32)


@given(data=st.data(), lanes=st.integers(1, 4), places=st.integers(1, 40), gamma=st.floats(0, 1), lam=st.floats(0, 1))
@settings(max_examples=150, deadline=None)
def test_it_equals_a_loop(data: Any, lanes: int, places: int, gamma: float, lam: float) -> None:
    shape = (lanes, places)
    reward, value, next_value = (data.draw(hnp.arrays(np.float32, shape, elements=floats)) for _ in range(3))
    over, goes_on = (data.draw(hnp.arrays(np.bool_, shape)) for _ in range(2))
    goes_on &= ~over
    goes_on[:, -1] = False
    ours = advantages(reward, value, next_value, over, goes_on, gamma, lam)
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, naive(reward, value, next_value, over, goes_on, gamma, lam), rtol=1e-4, atol=2e-3)


@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 9, 128])
def test_a_sum_of_all_that_follows(length: int) -> None:
    x = np.arange(length, dtype=np.float32)
    np.testing.assert_array_equal(scan(x, np.ones(length, np.float32)), x[::-1].cumsum()[::-1])


def test_what_is_given_stays_as_it_is() -> None:
    x, factor = np.ones((2, 5), np.float32), np.ones((2, 5), np.float32)
    scan(x, factor)
    assert (x == 1).all()
    assert (factor == 1).all()


def test_returns_go_on_from_the_rollout_before_and_begin_anew_with_an_episode() -> None:
    found = running_returns(row(1, 2, 4, 8), flags(1, 1, 0, 1), 0.5, np.array([10.0], np.float32))
    np.testing.assert_array_equal(found, row(1 + 5, 2 + 3, 4, 8 + 2))
    begun = running_returns(row(1, 2), flags(0, 1), 0.5, np.array([10.0], np.float32))
    np.testing.assert_array_equal(begun, row(1, 2.5))


def test_explained_variance() -> None:
    target = np.array([1.0, 2.0, 4.0])
    assert explained(target, target) == 1.0
    assert explained(np.full(3, 7.0), target) == pytest.approx(0.0)
    assert explained(target, np.ones(3)) == 0.0
