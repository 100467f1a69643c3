"""Random numbers of each lane's own: the same whenever, and in whatever company, the lane's turn comes."""

from __future__ import annotations

from typing import Any

import numpy as np

from freewheel import _core
from freewheel.worlds.seeds import lane_key

Array = np.ndarray[Any, Any]
# Draws made at once for a lane: a generator costs about as much as a hundred numbers.
BLOCK = 128
# A share of a sum, u * sum, must stay below the sum in float32 too.
BELOW_ONE = np.float32(1 - 1e-6)


class LaneNoise:
    """`width` numbers per draw, uniform in 0..1 or normal; the i-th draw of a lane follows from seed, lane and i alone.

    `drawn` counts the draws of each lane and is all that there is to save; `go_to` puts it back.
    """

    def __init__(self, seed: int, num_lanes: int, width: int, *, is_normal: bool, first_lane: int = 0) -> None:
        self.drawn = np.zeros(num_lanes, np.int64)
        self._seed, self._width, self._is_normal, self._first_lane = seed, width, is_normal, first_lane
        self._blocks = np.zeros((num_lanes, BLOCK, width), np.float32)
        self._made = np.full(num_lanes, -1, np.int64)  # which block each lane has
        self._even: int | None = 0  # the draws of every lane, if all have as many

    def go_to(self, drawn: Array) -> None:
        """Goes on after so many draws of each lane."""
        self.drawn[...] = drawn
        self._even = int(drawn[0]) if (drawn == drawn[0]).all() else None
        self._made[...] = -1

    def draw(self, lanes: Array) -> Array:
        """[k, width] for these lanes, none of which comes twice."""
        if self._even is None or len(lanes) != len(self.drawn):
            return self._draw_unevenly(lanes)
        block, place = divmod(self._even, BLOCK)
        if place == 0 or self._made[0] != block:
            for lane in range(len(self.drawn)):
                self._make(lane, block)
        self._even += 1
        self.drawn += 1
        drawn: Array = self._blocks[lanes, place]
        return drawn

    def _draw_unevenly(self, lanes: Array) -> Array:
        self._even = None
        count = self.drawn[lanes]
        block, place = np.divmod(count, BLOCK)
        wanted = block != self._made[lanes]
        if wanted.any():
            for i in np.flatnonzero(wanted).tolist():
                self._make(int(lanes[i]), int(block[i]))
        self.drawn[lanes] = count + 1
        drawn: Array = self._blocks[lanes, place]
        return drawn

    def _make(self, lane: int, block: int) -> None:
        seed = np.random.SeedSequence([self._seed, lane + self._first_lane, block])
        chance = np.random.Generator(np.random.PCG64(seed))
        rows = self._blocks[lane]
        if self._is_normal:
            chance.standard_normal(rows.shape, np.float32, out=rows)
        else:
            chance.random(rows.shape, np.float32, out=rows)
            rows *= BELOW_ONE
        self._made[lane] = block


class LaneShares:
    """`width` numbers per draw, uniform in 0..1 without 1: each a hash of seed, lane and the number of the lane's draw.

    `drawn` counts the draws of each lane and is all that there is to save.
    """

    def __init__(self, seed: int, num_lanes: int, width: int, first_lane: int = 0) -> None:
        self.drawn = np.zeros(num_lanes, np.int64)
        self._keys = np.array([lane_key(seed, first_lane + lane) for lane in range(num_lanes)], np.uint64)
        self._width = width

    def draw(self, lanes: Array) -> Array:
        """float64[k, width] for these lanes."""
        drawn = np.empty((len(lanes), self._width))
        _core.draw_lanes(self._keys, self.drawn, lanes, drawn)
        return drawn

    def skip(self, lanes: Array) -> None:
        """Counts a draw of these lanes whose numbers nobody needs."""
        self.drawn[lanes] += 1

    def go_to(self, drawn: Array) -> None:
        """Goes on after so many draws of each lane."""
        self.drawn[...] = drawn
