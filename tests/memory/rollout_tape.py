"""Lanes that are written by hand, for tests of rollouts."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from freewheel.contracts import ColumnSpec
from freewheel.memory.lanes import Lanes, Writer
from freewheel.memory.rollout import Collected, Rollout
from freewheel.spec import RowSpec

EXTRA: dict[str, ColumnSpec] = {"log_prob": ("float32", ()), "value": ("float32", ())}
SPEC = RowSpec.of(spaces.Box(-1e6, 1e6, (2,), np.float32), spaces.Discrete(1000), EXTRA)


class Tape:
    """Writes lanes and remembers each step: row k of a lane sees (lane, k), acts k, has value k / 10, and is paid k afterwards."""

    def __init__(self, num_lanes: int, num_rows: int, rows: int = 64, **more: Any) -> None:
        self.lanes = Lanes(SPEC, num_lanes, rows)
        self.writer: Writer = self.lanes.writer()
        self.rollout = Rollout(self.lanes, num_rows, **more)
        self.count = [0] * num_lanes
        self.steps: list[tuple[int, int]] = []  # (lane, row) of each whose outcome is known, in time
        self.version = 0

    def begin(self, lane: int) -> None:
        self._row(lane, 0.0)

    def go_on(self, lane: int) -> None:
        """The outcome of the newest action is an observation that is acted on."""
        self.steps.append((lane, self.count[lane] - 1))
        self._row(lane, float(self.count[lane] - 1))

    def end(self, lane: int, terminated: bool = True) -> None:
        self.steps.append((lane, self.count[lane] - 1))
        self._row(lane, float(self.count[lane] - 1), terminated, not terminated)

    def _row(self, lane: int, reward: float, terminated: bool = False, truncated: bool = False) -> None:
        k = self.count[lane]
        self.count[lane] += 1
        fields = {
            "obs": np.array([[lane, k]], np.float32),
            "action": np.array([k], np.int64),
            "log_prob": np.array([-k], np.float32),
            "value": np.array([k / 10], np.float32),
        }
        flags = np.array([terminated]), np.array([truncated])
        self.writer.append(np.array([lane]), fields, np.array([reward], np.float32), *flags, self.version)
        self.rollout.available = len(self.steps)


def rows_of(taken: Collected) -> list[tuple[int, int]]:
    """(lane, row) of each kept row, as its observation says."""
    return [(int(lane), int(k)) for lane, k in taken.obs["obs"]]
