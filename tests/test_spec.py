"""Nested values become fields of a row, and fields become the same values again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from freewheel.spec import fields_of, flatten, unflatten

BOX = spaces.Box(-1, 1, (2,), np.float32)
SPACES: list[spaces.Space[Any]] = [
    spaces.Discrete(3, start=2),
    BOX,
    spaces.Tuple((spaces.Discrete(4), BOX)),
    spaces.Dict(
        {"keys": spaces.MultiBinary(3), "move": spaces.Tuple((BOX, spaces.Dict({"jump": spaces.Discrete(2)})))}
    ),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_a_value_that_was_taken_apart_is_put_together_again(space: spaces.Space[Any]) -> None:
    space.seed(0)
    value = space.sample()
    fields = flatten("action", space, value)
    again = unflatten("action", space, fields)
    assert same_form(again, value)
    assert {name: part.tobytes() for name, part in flatten("action", space, again).items()} == {
        name: part.tobytes() for name, part in fields.items()
    }
    assert [(f.name, f.dtype, f.shape) for f in fields_of("action", space)] == [
        (name, str(part.dtype), part.shape) for name, part in fields.items()
    ]


def test_one_row_of_columns_is_what_an_env_takes() -> None:
    space = SPACES[3]
    columns = {
        "action.keys": np.array([[0, 1, 1], [1, 0, 0]], np.int8),
        "action.move.0": np.array([[0.5, -0.5], [1, 0]], np.float32),
        "action.move.1.jump": np.array([0, 1]),
    }
    action = unflatten("action", space, {name: column[1] for name, column in columns.items()})
    assert space.contains(action)
    assert action["keys"].tolist() == [1, 0, 0]
    assert action["move"][0].tolist() == [1, 0]
    assert action["move"][1] == {"jump": 1}


def same_form(one: Any, other: Any) -> bool:
    if isinstance(other, dict):
        return (
            isinstance(one, dict) and all(same_form(one[key], other[key]) for key in other) and len(one) == len(other)
        )
    if isinstance(other, tuple):
        return isinstance(one, tuple) and all(map(same_form, one, other)) and len(one) == len(other)
    return bool(np.array_equal(one, other))
