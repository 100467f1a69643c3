"""Steps of a vector env that the core reads by itself, and the arrays it puts them into."""

from __future__ import annotations

import numpy as np

from freewheel._core import StepReader
from freewheel.worlds.check import Leaf
from freewheel.worlds.world import Array

# What the reader says in place of how many episodes are over: it cannot read observations with such gaps; none is over, and the
# rows are in `whole`, as the env gave columns. Anything else below 0 is to be looked at closely.
HAS_GAPS, WAS_MOVED = -2, -3


class PlainRows:
    """The arrays of one world, used again in every step: making them takes longer than filling them."""

    def __init__(self, leaf: Leaf, begun: Array) -> None:
        num_lanes = len(begun)

        def arrays(*flags: type[np.bool_]) -> tuple[Array, ...]:
            """A number, a row, a reward and flags of each lane."""
            rows = np.empty((num_lanes, *leaf.shape), leaf.dtype)
            others = [np.empty(num_lanes, kind) for kind in (np.int64, np.float32, *flags)]
            return (others[0], rows, *others[1:])

        self.name = leaf.name
        self.whole = np.empty((num_lanes, *leaf.shape), leaf.dtype)
        self.reward = np.empty(num_lanes, np.float32)
        self.masks = (np.zeros(num_lanes, np.bool_), np.zeros(num_lanes, np.bool_))  # who is over, now and before
        self._going, self._ended = arrays(np.bool_), arrays(np.bool_, np.bool_)
        self._parts: dict[tuple[bool, int], tuple[Array, ...]] = {}
        self.reader = StepReader(self.whole, self.reward, self._going, self._ended, begun)

    def going(self, count: int) -> tuple[Array, ...]:
        """Of the lanes that go on: number, row, reward, first."""
        return self._first_of(False, count)

    def ended(self, count: int) -> tuple[Array, ...]:
        """Of the lanes whose episode is over: number, row, reward, terminated, truncated."""
        return self._first_of(True, count)

    def _first_of(self, is_over: bool, count: int) -> tuple[Array, ...]:
        found = self._parts.get((is_over, count))
        if found is None:
            arrays = self._ended if is_over else self._going
            found = self._parts[is_over, count] = tuple(rows[:count] for rows in arrays)
        return found
