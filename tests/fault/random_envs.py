"""Well-behaved envs of several spaces, with episodes of five steps. The last two have spaces that no network can have."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Vector(gymnasium.Env[Any, Any]):
    observation_space: Any = spaces.Box(-1, 1, (3,), np.float32)
    action_space: Any = spaces.Discrete(3, start=2)

    def __init__(self) -> None:
        self.count = 0

    def obs(self) -> Any:
        return np.full(self.observation_space.shape, self.count % 2, self.observation_space.dtype)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return self.obs(), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        return self.obs(), 1.0, self.count >= 5, False, {}


class Continuous(Vector):
    action_space = spaces.Box(-2, 2, (2,), np.float32)


class Image(Vector):
    observation_space = spaces.Box(0, 255, (36, 36), np.uint8)


class Masked(Vector):
    observation_space = spaces.Dict({"see": Vector.observation_space, "action_mask": spaces.MultiBinary(3)})

    def obs(self) -> Any:
        return {"see": np.zeros(3, np.float32), "action_mask": np.array([1, 0, 1], np.int8)}


class Parts(Vector):
    observation_space = spaces.Tuple((spaces.Discrete(5), spaces.MultiDiscrete([3, 4]), spaces.MultiBinary(2)))
    action_space = spaces.MultiDiscrete([2, 3])

    def obs(self) -> Any:
        return np.int64(self.count % 5), np.array([1, 2]), np.array([0, 1], np.int8)


class HugeActions(Vector):
    action_space = spaces.Discrete(10**9)


class HugeObs(Vector):
    observation_space = spaces.Discrete(10**9)

    def obs(self) -> Any:
        return np.int64(self.count)
