"""Outcomes that actors hold while they wait: in no row yet, but to be learned from."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np

from freewheel.memory.lanes import Lanes
from freewheel.memory.rollout import Bootstrap
from freewheel.memory.segment import Segment

Array = np.ndarray[Any, Any]
NONE = -1
BYTES_PER_LANE = 16


class Bootstraps:
    """Of each lane: the reward and the next value of its newest action, and how many rows the lane had then.

    A bootstrap counts as long as the lane has that many rows: the next row says the same, and takes its place. Each lane is written by
    the actor that writes the lane. Hand it to child processes as a `Process` argument (forkserver or spawn).
    """

    def __init__(self, num_lanes: int) -> None:
        self.num_lanes = num_lanes
        self.segment = Segment.create(BYTES_PER_LANE * num_lanes, "the bootstraps of the lanes")
        self._open()
        self._rows[:] = NONE

    def _open(self) -> None:
        n = self.num_lanes
        memory = mmap.mmap(self.segment.core.fd, BYTES_PER_LANE * n)
        self._rows: Array = np.ndarray(n, np.int64, memory)
        self._reward: Array = np.ndarray(n, np.float32, memory, 8 * n)
        self._value: Array = np.ndarray(n, np.float32, memory, 12 * n)

    def __getstate__(self) -> tuple[int, Segment]:
        return self.num_lanes, self.segment

    def __setstate__(self, state: tuple[int, Segment]) -> None:
        self.num_lanes, self.segment = state
        self._open()

    def put(self, bootstrap: Bootstrap, lanes: Lanes) -> None:
        """By the actor that writes these lanes, which writes none of them meanwhile."""
        # Void while it changes: a reader that sees the count before and after its copy has copied one.
        self._rows[bootstrap.lanes] = NONE
        self._reward[bootstrap.lanes], self._value[bootstrap.lanes] = bootstrap.reward, bootstrap.value
        self._rows[bootstrap.lanes] = [lanes.core.head(lane) for lane in bootstrap.lanes.tolist()]

    def of(self, heads: Array) -> Bootstrap:
        """The bootstraps of lanes that have so many rows."""
        before = self._rows == heads
        reward, value = self._reward.copy(), self._value.copy()
        lanes = np.flatnonzero(before & (self._rows == heads))
        return Bootstrap(lanes, reward[lanes], value[lanes])
