"""An env of Pong's shape and cost, for machines without Atari: grey frames of 84 x 84, about half a millisecond of work each."""

import time
from typing import Any

import gymnasium
import numpy as np

from .pixels_settings import ACTIONS, SIZE

# One step of Pong with four frames, grey and made smaller, takes about as long on one core.
STEP_S = 5e-4
EPISODE_STEPS = 1_000
BLOCK = 8

Array = np.ndarray[Any, Any]


class Frames(gymnasium.Env[Array, np.int64]):
    """A bright block that wanders; an action that points the way it goes is worth 1."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 255, (SIZE, SIZE), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(ACTIONS)
        self._at = np.zeros(2, np.int64)
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        self._at = self.np_random.integers(0, SIZE - BLOCK, 2)
        return self._frame(), {}

    def step(self, action: np.int64) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        until = time.thread_time() + STEP_S  # work, not waiting: two of them on one core take twice as long
        way = int(self.np_random.integers(ACTIONS))
        self._at = np.clip(self._at + np.array([way % 3 - 1, way // 3]), 0, SIZE - BLOCK)
        self._steps += 1
        frame = self._frame()
        while time.thread_time() < until:
            pass
        return frame, float(int(action) == way), False, self._steps >= EPISODE_STEPS, {}

    def _frame(self) -> Array:
        frame = np.full((SIZE, SIZE), 20, np.uint8)
        y, x = self._at
        frame[y : y + BLOCK, x : x + BLOCK] = 255
        return frame


def make() -> Frames:
    return Frames()
