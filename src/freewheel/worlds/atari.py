"""Atari games of ale-py: single games with our own preprocessing, or its native vector env, with the same images."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

from freewheel.config import WorldConfig, wanted
from freewheel.errors import ConfigError
from freewheel.worlds.image import LIFE_LOST
from freewheel.worlds.vector import Vector
from freewheel.worlds.world import Array

ENTRY = "ale_py.env:AtariEnv"
FPS = 60  # of the console; ale-py says 30


def is_atari(spec: EnvSpec) -> bool:
    return spec.entry_point == ENTRY


def env_kwargs(name: str, config: WorldConfig, given: dict[str, Any]) -> dict[str, Any]:
    """Arguments for one game with preprocessed images: one frame per step, and grey by the console's own palette."""
    if not wanted(config):
        return given
    for key, setting in (("frameskip", "skip"), ("obs_type", "grey")):
        if key in given:
            raise ConfigError(f"{name}: {key} in world.kwargs and world.{setting} set the same thing. Remove {key}.")
    added: dict[str, Any] = {"obs_type": "grayscale"} if config.grey else {}
    return {**given, **added, "frameskip": 1}


def set_frame_rate(env: gymnasium.Env[Any, Any], config: WorldConfig) -> None:
    """For films: the true frames per second of a game that gives every frame."""
    if wanted(config):
        game = env.unwrapped
        game.metadata = {**game.metadata, "render_fps": FPS}


def make_vector(name: str, spec: EnvSpec, config: WorldConfig, given: dict[str, Any]) -> Vector:
    """`world.lanes` games in native code, preprocessed like a single game."""
    if not config.image_size:
        raise ConfigError(
            f"{name}: Atari's vector form resizes images. Set world.image_size (84 is usual) or use --preset Atari."
        )
    if config.max_episode_steps:
        given = {**given, "max_num_frames_per_episode": config.max_episode_steps * config.skip}
    prepared = {
        "frameskip": config.skip,
        "grayscale": config.grey,
        "img_height": config.image_size,
        "img_width": config.image_size,
        "noop_max": config.noop_max,
        "use_fire_reset": config.fire_reset,
        "maxpool": config.skip > 1,
        "stack_num": 1,  # rows keep each frame once; sampling stacks them
        "reward_clipping": False,  # world.reward_clip does it, and returns are reported unclipped
        "autoreset_mode": AutoresetMode.SAME_STEP,
        # One unless auto found free cores: an actor has one core.
        "num_threads": config.threads or 1,
    }
    if twice := sorted(given.keys() & prepared.keys() - {"num_threads"}):
        raise ConfigError(
            f"{name}: {', '.join(twice)} in world.kwargs is set by the settings of world. Remove it from world.kwargs."
        )
    mode = gymnasium.VectorizeMode.VECTOR_ENTRY_POINT
    # ale-py writes its mode into a dict that all vector envs share.
    shared = dict(VectorEnv.metadata)
    try:
        made = gymnasium.make_vec(spec, config.lanes, mode, **{**prepared, **given})
        made.metadata = dict(made.metadata)
    finally:
        VectorEnv.metadata.clear()
        VectorEnv.metadata.update(shared)
    return Frames(made, config.episodic_life)


class Frames(VectorWrapper):  # type: ignore[misc,type-arg,unused-ignore]
    """The newest frame of each lane, without the axis of a stack."""

    def __init__(self, env: Vector, ends_lives: bool) -> None:
        super().__init__(env)
        # Counted here: ale-py's own episodic_life begins a new game after each life, so later lives would never be played.
        self._lives: Array | None = np.zeros(env.num_envs, np.int64) if ends_lives else None
        stacked: Any = env.single_observation_space
        self.single_observation_space = spaces.Box(0, 255, stacked.shape[1:], np.uint8)
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, env.num_envs)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        if self._lives is not None:
            self._lives = np.array(info["lives"])
        return obs[:, 0], info

    def step(self, actions: Any) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(actions)
        if "final_obs" in info:
            info = {**info, "final_obs": info["final_obs"][:, 0]}
        if self._lives is not None:
            lost = (info["lives"] < self._lives) & ~(terminated | truncated)
            self._lives = np.array(info["lives"])
            info = {**info, LIFE_LOST: lost}
        return obs[:, 0], reward, terminated, truncated, info
