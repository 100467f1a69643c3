"""Image preprocessing in the env: frame skip, greyscale and resizing, to bytes."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from freewheel.config import WorldConfig, wanted
from freewheel.errors import ConfigError
from freewheel.spec import Space
from freewheel.worlds.world import Array

Env = gymnasium.Env[Any, Any]
LIFE_LOST = "life_lost"  # in the info of a step with world.episodic_life
# The weights of red, green and blue (ITU-R BT.601), as in most image libraries.
GREY = np.array([0.299, 0.587, 0.114], np.float32)


def prepare(env: Env, config: WorldConfig, name: str) -> Env:
    """The env with its images preprocessed; the env itself if no setting asks for that."""
    return Prepared(env, config, name) if wanted(config) else env


class Prepared(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An env whose steps are `skip` frames each, with images of the size and colour of the settings."""

    def __init__(self, env: Env, config: WorldConfig, name: str) -> None:
        super().__init__(env)
        self._skip, self._noop_max = config.skip, config.noop_max
        self._noop, self._fire = _buttons(env, config, name)
        self._picture = Picture(env.observation_space, config.image_size, config.grey, name, wanted(config))
        self.observation_space = self._picture.space
        self._random = np.random.default_rng()
        self.ends_lives = config.episodic_life
        self._lives, self._name = 0, name
        fps = env.metadata.get("render_fps")
        if isinstance(fps, (int, float)):
            self.metadata = {**env.metadata, "render_fps": fps / self._skip}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self._random = np.random.default_rng(seed)  # the same seed gives the same episode
        obs, info = self.env.reset(seed=seed, options=options)
        idle = int(self._random.integers(self._noop_max)) if self._noop_max else 0
        presses = [self._noop] * idle
        if self._fire is not None:
            presses = [self._fire, *presses[1:]]
        for action in presses:
            obs, _, terminated, truncated, info = self.env.step(action)
            if terminated or truncated:
                obs, info = self.env.reset(options=options)
        self._count_lives(info)
        return self._picture(obs), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        total, before = 0.0, None
        for left in range(self._skip - 1, -1, -1):
            obs, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                before = None
                break
            if left == 1:
                before = np.array(obs)  # the env may draw the next frame into the same memory
        if before is not None:
            obs = np.maximum(before, obs)
        if self.ends_lives:
            before_step = self._lives
            if self._count_lives(info) < before_step and not (terminated or truncated):
                info = {**info, LIFE_LOST: True}
        return self._picture(obs), total, terminated, truncated, info

    def _count_lives(self, info: dict[str, Any]) -> int:
        if self.ends_lives:
            if "lives" not in info:
                raise ConfigError(
                    f"world.episodic_life needs the number of lives, and {self._name} gives no info['lives']. Turn it off."
                )
            self._lives = int(info["lives"])
        return self._lives


class Picture:
    """Converts the env's images to the size and colour of the settings."""

    def __init__(self, space: Space, size: int, grey: bool, name: str, given: dict[str, object]) -> None:
        if not (isinstance(space, spaces.Box) and space.dtype == np.uint8 and _is_picture(space.shape)):
            names = " and ".join(f"world.{key}={value}" for key, value in given.items())
            raise ConfigError(
                f"{name} gives {space}, and {names} need{'s' if len(given) == 1 else ''} images: uint8 of "
                "[height, width] or [height, width, colours]. Remove these settings, or return images from the env."
            )
        height, width, *colours = space.shape
        self._is_grey = grey and colours == [3]
        if grey and colours not in ([], [1], [3]):
            raise ConfigError(f"{name} gives images of {colours[0]} colours, and world.grey=True needs 3. Turn it off.")
        self._drops_axis = grey and colours == [1]
        self._rows = Lines(height, size) if size not in (0, height) else None
        self._columns = Lines(width, size) if size not in (0, width) else None
        shape = (size or height, size or width, *([] if grey else colours))
        self.space = spaces.Box(0, 255, shape, np.uint8)

    def __call__(self, picture: Array) -> Array:
        if self._drops_axis:
            picture = picture[:, :, 0]
        if not self._is_grey and self._rows is None and self._columns is None:
            return np.ascontiguousarray(picture)
        image = picture @ GREY if self._is_grey else picture
        if self._rows is not None:
            image = self._rows(image)
        if self._columns is not None:
            image = self._columns(np.ascontiguousarray(image.swapaxes(0, 1))).swapaxes(0, 1)
        return np.ascontiguousarray(np.rint(image).astype(np.uint8))


class Lines:
    """Resizes one axis of an image: each new line is the mean of the lines it covers, weighted by the covered area.

    Gathers and weights lines: as fast at 210 x 160 as a matrix product, which would start threads in every actor.
    """

    def __init__(self, source: int, target: int) -> None:
        edges = np.arange(target + 1) * (source / target)
        low, high = edges[:-1, None], edges[1:, None]
        first = np.floor(low).astype(np.int64)
        lines = first + np.arange(int((np.ceil(high) - first).max()))
        covered = np.clip(np.minimum(lines + 1, high) - np.maximum(lines, low), 0, None)
        weights = (covered / covered.sum(axis=1, keepdims=True)).astype(np.float32)
        lines = np.minimum(lines, source - 1)  # lines beyond the edge have no weight
        self._parts = list(zip(lines.T.copy(), weights.T.copy(), strict=True))

    def __call__(self, picture: Array) -> Array:
        shape = (-1,) + (1,) * (picture.ndim - 1)
        (line, weight), *rest = self._parts
        mixed: Array = picture[line] * weight.reshape(shape)
        for line, weight in rest:
            mixed += picture[line] * weight.reshape(shape)
        return mixed


def _is_picture(shape: tuple[int, ...]) -> bool:
    return len(shape) == 2 or (len(shape) == 3 and shape[2] <= 4)


def _buttons(env: Env, config: WorldConfig, name: str) -> tuple[Any, Any]:
    """The actions NOOP and FIRE; None for one that is not needed or does not exist."""
    if not (config.noop_max or config.fire_reset):
        return None, None
    meanings = getattr(env.unwrapped, "get_action_meanings", None)
    names = [] if meanings is None or not isinstance(env.action_space, spaces.Discrete) else list(meanings())
    if config.noop_max and "NOOP" not in names:
        raise ConfigError(
            f"world.noop_max={config.noop_max} needs an action that does nothing, and {name} does not name one. "
            "Set it to 0, or add a method get_action_meanings() with NOOP among the names."
        )
    if config.fire_reset and not names:
        raise ConfigError(
            f"world.fire_reset needs to know which action is FIRE, and {name} has no get_action_meanings(). Turn it off."
        )
    has_fire = config.fire_reset and "FIRE" in names
    return names.index("NOOP") if config.noop_max else None, names.index("FIRE") if has_fire else None
