"""Two small games of images: one to learn with convolutions, and one that only the order of frames can solve."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from freewheel.worlds.world import Array

SIDE = 84
CELLS = 12
DARK, LIGHT = 40, 255


class Catch(gymnasium.Env[Any, Any]):
    """A ball falls, and the paddle at the bottom moves left, stays or moves right: 1 if it catches the ball, else -1.

    With fewer `cells`, each is larger and the game is shorter; a divisor of 84.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    observation_space = spaces.Box(0, 255, (SIDE, SIDE), np.uint8)
    action_space = spaces.Discrete(3)

    def __init__(self, render_mode: str | None = None, cells: int = CELLS) -> None:
        if cells < 2 or SIDE % cells:
            raise ValueError(f"cells={cells} must be a divisor of {SIDE}, and at least 2.")
        self.render_mode, self._cells = render_mode, cells

    def get_action_meanings(self) -> list[str]:
        return ["LEFT", "NOOP", "RIGHT"]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self._ball, self._paddle = (int(place) for place in self.np_random.integers(self._cells, size=2))
        self._height = 0
        return self._draw(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self._paddle = min(max(self._paddle + int(action) - 1, 0), self._cells - 1)
        self._height += 1
        is_over = self._height == self._cells - 1
        reward = (1.0 if self._ball == self._paddle else -1.0) if is_over else 0.0
        return self._draw(), reward, is_over, False, {}

    def render(self) -> Any:
        return _in_colour(self._draw())

    def _draw(self) -> Array:
        return _picture(self._cells, (self._height, self._ball), (self._cells - 1, self._paddle))


class Drift(gymnasium.Env[Any, Any]):
    """A dot moves in one direction and wraps around. The reward is 1 for naming the direction (0 left, 1 right), else -1.

    Every place is equally likely in both directions, so one frame says nothing, and neither do two frames of unknown order. The first
    answer of an episode can only be a guess and does not count.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    observation_space = spaces.Box(0, 255, (SIDE, SIDE), np.uint8)
    action_space = spaces.Discrete(2)
    STEPS = 16

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def get_action_meanings(self) -> list[str]:
        return ["LEFT", "RIGHT"]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self._place, self._direction = int(self.np_random.integers(CELLS)), int(self.np_random.choice([-1, 1]))
        self._taken = 0
        return self._draw(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        is_right = (1 if int(action) else -1) == self._direction
        reward = 0.0 if self._taken == 0 else 1.0 if is_right else -1.0
        self._taken += 1
        self._place = (self._place + self._direction) % CELLS
        return self._draw(), reward, False, self._taken == self.STEPS, {}

    def render(self) -> Any:
        return _in_colour(self._draw())

    def _draw(self) -> Array:
        return _picture(CELLS, (CELLS // 2, self._place))


def _picture(num_cells: int, *lit: tuple[int, int]) -> Array:
    cells = np.full((num_cells, num_cells), DARK, np.uint8)
    for row, column in lit:
        cells[row, column] = LIGHT
    return cells.repeat(SIDE // num_cells, axis=0).repeat(SIDE // num_cells, axis=1)


def _in_colour(picture: Array) -> Array:
    return np.repeat(picture[:, :, None], 3, axis=2)


for _id, _env in (("freewheel/Catch-v0", Catch), ("freewheel/Drift-v0", Drift)):
    if _id not in gymnasium.registry:
        gymnasium.register(_id, entry_point=f"{__name__}:{_env.__name__}")
