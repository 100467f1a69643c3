"""The newest observations of each lane, for networks that see several at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from freewheel.spec import Field

Array = np.ndarray[Any, Any]


class History:
    """`stack` observations per lane, oldest first; an episode's first observation fills the places before it."""

    def __init__(self, fields: tuple[Field, ...], num_lanes: int, stack: int) -> None:
        self._frames = {f.name: np.zeros((num_lanes, stack, *f.shape), f.dtype) for f in fields if f.is_observation}

    def push(self, lanes: Array, obs: dict[str, Array], first: Array) -> dict[str, Array]:
        """Takes in an observation of each of these lanes; gives their stacks [k, stack, ...]."""
        stacks = {}
        for name, rows in obs.items():
            frames = self._frames[name]
            stack = frames[lanes]
            stack[:, :-1] = stack[:, 1:]
            stack[:, -1] = rows
            stack[first] = rows[first][:, None]
            frames[lanes] = stack
            stacks[name] = stack
        return stacks

    def state(self) -> dict[str, Array]:
        return dict(self._frames)

    def set_state(self, state: dict[str, Array]) -> None:
        for name, frames in self._frames.items():
            frames[...] = state[name]
