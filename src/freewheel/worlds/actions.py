"""From columns of actions to what an env's step takes, and back to columns for a world's state."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces

from freewheel.spec import Space, fields_of, flatten, unflatten
from freewheel.worlds.world import Columns

ACTION = "action"


class Actions(Protocol):
    """The actions of one space."""

    def apart(self, columns: Columns) -> list[Any]:
        """One action per row that is the env's own, whatever becomes of the columns."""

    def together(self, prefix: str, actions: Sequence[Any]) -> Columns:
        """Columns that `apart` makes the same actions of again, once they have the names of the row's fields."""

    def logger(self, history: deque[Any]) -> Callable[[Any], None]:
        """Appends an action to the history as it is before the env gets it: the env may write into it."""


def actions_of(space: Space) -> Actions:
    return NestedActions(space) if isinstance(space, (spaces.Dict, spaces.Tuple)) else PlainActions(space)


class PlainActions:
    """Actions that are one array, or one number."""

    def __init__(self, space: Space) -> None:
        self._dtype, self._shape = space.dtype, space.shape or ()
        self._is_number = isinstance(space, spaces.Discrete)

    def apart(self, columns: Columns) -> list[Any]:
        # Of Discrete ones NumPy's scalars, as its sample() gives: Gymnasium 1.4 looks at an int twice as long.
        return list(np.array(columns[ACTION], self._dtype))

    def together(self, prefix: str, actions: Sequence[Any]) -> Columns:
        return {prefix: np.array(actions, self._dtype).reshape(-1, *self._shape)}

    def logger(self, history: deque[Any]) -> Callable[[Any], None]:
        return history.append if self._is_number else lambda action: history.append(action.copy())


class NestedActions:
    """Actions of a Dict or Tuple space, which lie in a column for each part."""

    def __init__(self, space: Space) -> None:
        self._space, self._fields = space, fields_of(ACTION, space)

    def apart(self, columns: Columns) -> list[Any]:
        own = [np.array(columns[field.name], field.dtype) for field in self._fields]
        names = [field.name for field in self._fields]
        rows = (dict(zip(names, row, strict=True)) for row in zip(*own, strict=True))
        return [unflatten(ACTION, self._space, row) for row in rows]

    def together(self, prefix: str, actions: Sequence[Any]) -> Columns:
        rows = [flatten(ACTION, self._space, action) for action in actions]
        return {
            prefix + field.name.removeprefix(ACTION): np.array([row[field.name] for row in rows], field.dtype).reshape(
                -1, *field.shape
            )
            for field in self._fields
        }

    def logger(self, history: deque[Any]) -> Callable[[Any], None]:
        return lambda action: history.append(copy.deepcopy(action))
