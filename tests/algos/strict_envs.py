"""Envs that raise where an action is forbidden: their masks come in the observation, or in info."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

NUM_ACTIONS, FIRST, PLACES = 5, 3, 9


class Strict(gymnasium.Env[Any, Any]):
    """A walk on a line of places: some moves are forbidden, others at each step. Nothing is allowed once it is over."""

    see = spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space = spaces.Discrete(NUM_ACTIONS, start=FIRST)
    observation_space: Any = spaces.Dict({"see": see, "action_mask": spaces.MultiBinary(NUM_ACTIONS)})

    def __init__(self, longest: int = 12) -> None:
        self.longest = longest
        self.at = self.goal = self.taken = 0
        self.mask = np.zeros(NUM_ACTIONS, np.int8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.at, self.goal = (int(place) for place in self.np_random.integers(PLACES, size=2))
        self.taken = 0
        self.mask = self.new_mask()
        return self.look(), self.info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        index = int(action) - FIRST
        if not self.mask[index]:
            raise ValueError(f"action {action} is forbidden by {self.mask}")
        self.at = min(max(self.at + index - 2, 0), PLACES - 1)
        self.taken += 1
        is_there = self.at == self.goal
        self.mask = self.new_mask() if not is_there else np.zeros(NUM_ACTIONS, np.int8)
        return self.look(), 1.0 if is_there else -0.1, is_there, self.taken >= self.longest, self.info()

    def new_mask(self) -> Any:
        mask = self.np_random.random(NUM_ACTIONS) < 0.4
        mask[self.np_random.integers(NUM_ACTIONS)] = True
        return mask.astype(np.int8)

    def seen(self) -> Any:
        return np.array([self.at / 4 - 1, self.goal / 4 - 1, self.taken / self.longest], np.float32)

    def look(self) -> Any:
        return {"see": self.seen(), "action_mask": self.mask}

    def info(self) -> dict[str, Any]:
        return {}


class ByInfo(Strict):
    """The same, with the mask in info: where an episode terminated it gives none."""

    observation_space: Any = Strict.see

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"]}

    def __init__(self, longest: int = 12, vanishes_at: int = -1, render_mode: str | None = None) -> None:
        super().__init__(longest)
        self.vanishes_at, self.render_mode = vanishes_at, render_mode

    def look(self) -> Any:
        return self.seen()

    def info(self) -> dict[str, Any]:
        return {"action_mask": self.mask} if self.mask.any() and self.taken != self.vanishes_at else {}

    def render(self) -> Any:
        return np.full((32, 32, 3), 20 * self.at, np.uint8)
