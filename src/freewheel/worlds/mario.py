"""Super Mario Bros. of gym-super-mario-bros as a Gymnasium env, with NumPy 2 and without the old gym package."""

from __future__ import annotations

import importlib
import re
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from freewheel.errors import ConfigError
from freewheel.worlds.world import Array

ID = re.compile(r"SuperMarioBros(?:-([1-8])-([1-4]))?-v([0-3])$")
LOOKS = ("vanilla", "downsample", "pixel", "rectangle")  # of versions 0 to 3 of an id
SHAPE = (240, 256, 3)
FPS = 60
BITS = {"NOOP": 0, "RIGHT": 1 << 7, "LEFT": 1 << 6, "DOWN": 1 << 5, "UP": 1 << 4, "B": 1 << 1, "A": 1}  # of the joypad
RIGHT, LEFT = ([way, f"{way} A", f"{way} B", f"{way} A B"] for way in ("RIGHT", "LEFT"))
BUTTONS = {name: sum(BITS[button] for button in name.split()) for name in ("NOOP", *RIGHT, "A", *LEFT, "DOWN", "UP")}


def register(env_id: str) -> None:
    """Registers SuperMarioBros-1-1-v0 and the like; without a stage it is the whole game."""
    found = ID.match(env_id)
    if found is None:
        raise ConfigError(
            f"there is no env {env_id!r}. Write SuperMarioBros-v0 for the whole game or SuperMarioBros-WORLD-STAGE-v0 for one stage, "
            "such as SuperMarioBros-1-1-v0; v1 to v3 have simpler graphics."
        )
    given = {"world": int(found[1] or 0), "stage": int(found[2] or 0), "look": LOOKS[int(found[3])]}
    gymnasium.register(env_id, entry_point=f"{__name__}:Mario", kwargs=given)


class Mario(gymnasium.Env[Any, Any]):
    """One stage, which ends with Mario's death or at the flag; `world` 0 is the whole game with its three lives.

    A step is one frame in colour. The reward is the way to the right, minus the time, minus 25 for a death, clipped to 15. The game is
    deterministic: the same actions give the same frames with any seed.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": FPS}  # noqa: RUF012
    observation_space = spaces.Box(0, 255, SHAPE, np.uint8)
    action_space = spaces.Discrete(len(BUTTONS))

    def __init__(self, world: int = 1, stage: int = 1, look: str = "vanilla", render_mode: str | None = None) -> None:
        if look not in LOOKS:
            raise ConfigError(f"look={look!r} is not one of {', '.join(LOOKS)}.")
        if world and not (1 <= world <= 8 and 1 <= stage <= 4):
            raise ConfigError(
                f"world={world}, stage={stage}: there are worlds 1 to 8 with stages 1 to 4; world 0 is the whole game."
            )
        self.render_mode = render_mode
        self._game: Any = _game()(rom_mode=look, target=(world, stage) if world else None)
        self._codes = list(BUTTONS.values())

    def get_action_meanings(self) -> list[str]:
        return list(BUTTONS)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        return np.array(self._game.reset()), {"lives": self._game._life}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        screen, reward, is_over, info = self._game.step(self._codes[int(action)])
        return np.array(screen), reward, is_over, False, {**info, "lives": info["life"]}

    def render(self) -> Any:
        return np.array(self._game.screen)

    def close(self) -> None:
        game, self._game = self._game, None
        if game is not None:
            # These are views of the emulator's memory, which close() frees.
            game.screen = game.ram = game.controllers = None
            game.close()


make = Mario  # the name of the env by its arguments: freewheel.worlds.mario:make


class Memory:
    """The console's memory as Python numbers: NumPy 2's bytes would wrap around in this package's arithmetic."""

    def __init__(self, bytes_: Array) -> None:
        self._bytes = bytes_

    def __getitem__(self, at: Any) -> Any:
        return self._bytes[at].tolist()

    def __setitem__(self, at: Any, value: Any) -> None:
        self._bytes[at] = value


@cache
def _game() -> Any:
    """The package's env class, which reads bytes as Python numbers."""
    try:
        with _without_gym():
            nes: Any = importlib.import_module("nes_py.nes_env")
            games: Any = importlib.import_module("gym_super_mario_bros.smb_env")
    except ImportError as error:
        raise ConfigError(
            f"Super Mario Bros. needs gym-super-mario-bros, and importing it failed: {error}. pip install 'freewheel[mario]'"
        ) from error

    class Rom(nes.ROM):  # type: ignore[misc]
        @property
        def header(self) -> list[int]:
            return list(map(int, self.raw_data[:16]))

        @property
        def _zero_fill(self) -> int:
            return sum(self.header[11:])

    class Game(games.SuperMarioBrosEnv):  # type: ignore[misc]
        def _ram_buffer(self) -> Memory:
            return Memory(super()._ram_buffer())

    nes.ROM = Rom
    return Game


@contextmanager
def _without_gym() -> Iterator[None]:
    """Gymnasium under the name gym while the package is imported: it needs a base class, two spaces and a place to register.

    The old gym prints a warning when it is imported, and does not work with NumPy 2.
    """
    if "gym" in sys.modules or "nes_py" in sys.modules:
        yield
        return
    registration = types.ModuleType("gym.envs.registration")
    registration.register = lambda **_: None  # type: ignore[attr-defined]
    envs = types.ModuleType("gym.envs")
    envs.registration = registration  # type: ignore[attr-defined]
    gym = types.ModuleType("gym")
    gym.Env, gym.Wrapper, gym.make = object, object, gymnasium.make  # type: ignore[attr-defined]
    gym.spaces, gym.envs = spaces, envs  # type: ignore[attr-defined]
    names = {"gym": gym, "gym.spaces": spaces, "gym.envs": envs, "gym.envs.registration": registration}
    sys.modules.update(names)
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]
