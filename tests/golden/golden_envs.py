"""Small envs of the golden cases, here and not in the package: their episodes must not change with it."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

SIDE, CELLS = 18, 6


class SmallCatch(gymnasium.Env[Any, Any]):
    """A ball falls, a paddle catches it: grey pictures of 18 x 18."""

    observation_space = spaces.Box(0, 255, (SIDE, SIDE), np.uint8)
    action_space = spaces.Discrete(3)

    def __init__(self) -> None:
        self._ball = self._paddle = self._height = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._ball, self._paddle = (int(place) for place in self.np_random.integers(CELLS, size=2))
        self._height = 0
        return self._picture(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._paddle = min(max(self._paddle + int(action) - 1, 0), CELLS - 1)
        self._height += 1
        is_over = self._height == CELLS - 1
        reward = (1.0 if self._ball == self._paddle else -1.0) if is_over else 0.0
        return self._picture(), reward, is_over, False, {}

    def _picture(self) -> Any:
        cells = np.full((CELLS, CELLS), 40, np.uint8)
        cells[self._height, self._ball] = cells[CELLS - 1, self._paddle] = 255
        return cells.repeat(SIDE // CELLS, axis=0).repeat(SIDE // CELLS, axis=1)


class Masked(gymnasium.Env[Any, Any]):
    """Walks on a line of 9 places to a goal; walls, and one direction at a time, are forbidden by a mask."""

    observation_space = spaces.Dict(
        {"at": spaces.Box(-1.0, 1.0, (3,), np.float32), "action_mask": spaces.Box(0, 1, (4,), np.int8)}
    )
    action_space = spaces.Discrete(4)  # left, right, two to the left, two to the right
    MOVES = (-1, 1, -2, 2)

    def __init__(self) -> None:
        self._at = self._goal = self._steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._at, self._goal = (int(place) for place in self.np_random.integers(9, size=2))
        self._steps = 0
        return self._look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._at = min(max(self._at + self.MOVES[int(action)], 0), 8)
        self._steps += 1
        is_there = self._at == self._goal
        return self._look(), 1.0 if is_there else -0.1, is_there, self._steps >= 20, {}

    def _look(self) -> dict[str, Any]:
        mask = [0 <= self._at + move <= 8 for move in self.MOVES]
        mask[2 + self._steps % 2] = False
        at = np.array([self._at / 4 - 1, self._goal / 4 - 1, self._steps / 10 - 1], np.float32)
        return {"at": at, "action_mask": np.array(mask, np.int8)}
