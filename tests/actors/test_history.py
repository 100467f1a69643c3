from __future__ import annotations

import numpy as np

from freewheel.actors.actor import History
from freewheel.spec import Field

FIELDS = (Field("obs", "float32", (1,), True), Field("action", "int64", (), False))


def push(history: History, lanes: list[int], values: list[float], first: list[bool]) -> list[list[float]]:
    obs = {"obs": np.array(values, np.float32)[:, None]}
    stacks: list[list[float]] = history.push(np.array(lanes), obs, np.array(first))["obs"][:, :, 0].tolist()
    return stacks


def test_stacks_are_per_lane_oldest_first_and_begin_with_the_first() -> None:
    history = History(FIELDS, 3, 3)
    assert push(history, [0, 2], [1, 10], [True, True]) == [[1, 1, 1], [10, 10, 10]]
    assert push(history, [0], [2], [False]) == [[1, 1, 2]]
    assert push(history, [2, 0], [11, 3], [False, False]) == [[10, 10, 11], [1, 2, 3]]
    assert push(history, [0, 2], [9, 12], [True, False]) == [[9, 9, 9], [10, 11, 12]]


def test_what_was_given_does_not_change_later() -> None:
    history = History(FIELDS, 1, 2)
    first = history.push(np.array([0]), {"obs": np.array([[1.0]], np.float32)}, np.array([True]))["obs"]
    history.push(np.array([0]), {"obs": np.array([[2.0]], np.float32)}, np.array([False]))
    assert first.tolist() == [[[1.0], [1.0]]]


def test_it_goes_on_from_its_state() -> None:
    one, two = History(FIELDS, 2, 3), History(FIELDS, 2, 3)
    push(one, [0, 1], [1, 2], [True, True])
    push(one, [0, 1], [3, 4], [False, False])
    two.set_state({name: rows.copy() for name, rows in one.state().items()})
    assert push(one, [0, 1], [5, 6], [False, False]) == push(two, [0, 1], [5, 6], [False, False])
