"""Stable-Baselines3's DQN as it comes, at the ratio that is asked for."""

import importlib
from typing import Any

from freewheel.bench.worker.dqn_settings import (
    BATCH,
    BUFFER,
    CLIP_NORM,
    ENDLESS,
    ENV,
    EPSILON,
    GAMMA,
    HIDDEN,
    LEARNING_STARTS,
    LR,
    TARGET_EVERY_STEPS,
    turns,
)
from freewheel.bench.worker.meter import Meter

sb3: Any = importlib.import_module("stable_baselines3")
env_util: Any = importlib.import_module("stable_baselines3.common.env_util")


def version() -> str:
    return str(sb3.__version__)


def train(meter: Meter, order: dict[str, Any]) -> None:
    train_freq, gradient_steps = turns(order["envs"])
    model = sb3.DQN(
        "MlpPolicy",
        env_util.make_vec_env(
            ENV, n_envs=order["envs"], seed=0
        ),  # steps its envs in turn: the fastest way for CartPole
        policy_kwargs={"net_arch": list(HIDDEN)},
        batch_size=BATCH,
        train_freq=train_freq,
        gradient_steps=gradient_steps,
        buffer_size=BUFFER,
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
