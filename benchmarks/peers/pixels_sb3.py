"""Stable-Baselines3's DQN with its CnnPolicy as it comes, at the ratio that is asked for."""

import importlib
from typing import Any

from freewheel.bench.worker.meter import Meter

from .frames_env import Frames
from .pixels_settings import (
    BATCH,
    BUFFER,
    CLIP_NORM,
    ENDLESS,
    EPSILON,
    GAME,
    GAMMA,
    LEARNING_STARTS,
    LR,
    STACK,
    TARGET_EVERY_STEPS,
    turns,
)

sb3: Any = importlib.import_module("stable_baselines3")
env_util: Any = importlib.import_module("stable_baselines3.common.env_util")
vec_env: Any = importlib.import_module("stable_baselines3.common.vec_env")


def version() -> str:
    return str(sb3.__version__)


def make_envs(kind: str, count: int) -> Any:
    """More than one in processes of their own, its fastest way for Atari; forked, so that they know the games."""
    how, given = (vec_env.SubprocVecEnv, {"start_method": "fork"}) if count > 1 else (vec_env.DummyVecEnv, {})
    if kind == "frames":
        envs = how([lambda: Deep(Frames())] * count, **given)
    else:
        importlib.import_module("gymnasium").register_envs(importlib.import_module("ale_py"))
        envs = env_util.make_atari_env(GAME, n_envs=count, seed=0, vec_env_cls=how, vec_env_kwargs=given)
    return vec_env.VecFrameStack(envs, STACK)


def Deep(env: Any) -> Any:
    """Frames as (84, 84, 1), the way its own Atari wrappers give them."""
    gymnasium: Any = importlib.import_module("gymnasium")
    numpy: Any = importlib.import_module("numpy")
    space = gymnasium.spaces.Box(0, 255, (*env.observation_space.shape, 1), numpy.uint8)
    return gymnasium.wrappers.TransformObservation(env, lambda frame: frame[..., None], space)


def train(meter: Meter, order: dict[str, Any]) -> None:
    train_freq, gradient_steps = turns(order["envs"])
    model = sb3.DQN(
        "CnnPolicy",
        make_envs(order["env"], order["envs"]),
        batch_size=BATCH,
        train_freq=train_freq,
        gradient_steps=gradient_steps,
        buffer_size=BUFFER,
        optimize_memory_usage=False,
        learning_starts=LEARNING_STARTS,
        target_update_interval=TARGET_EVERY_STEPS,
        learning_rate=LR,
        gamma=GAMMA,
        max_grad_norm=CLIP_NORM,
        exploration_initial_eps=EPSILON,
        exploration_final_eps=EPSILON,
        device="cpu",
        seed=0,
    )

    def go_on(*_: Any) -> bool:
        return not meter.is_over(model.num_timesteps, model._n_updates)

    model.learn(ENDLESS, callback=go_on)
    model.get_env().close()
