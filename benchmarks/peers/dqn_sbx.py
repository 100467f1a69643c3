"""SBX's DQN (Stable-Baselines3 in JAX) as it comes, at the ratio that is asked for."""

import importlib
import importlib.metadata
from typing import Any

from freewheel.bench.worker.dqn_settings import (
    BATCH,
    BUFFER,
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

sbx: Any = importlib.import_module("sbx")
env_util: Any = importlib.import_module("stable_baselines3.common.env_util")


def version() -> str:
    return importlib.metadata.version("sbx-rl")


def train(meter: Meter, order: dict[str, Any]) -> None:
    """It does not clip gradients, and makes all updates of a turn in one compiled call."""
    train_freq, gradient_steps = turns(order["envs"])
    model = sbx.DQN(
        "MlpPolicy",
        env_util.make_vec_env(ENV, n_envs=order["envs"], seed=0),
        policy_kwargs={"net_arch": list(HIDDEN)},
        batch_size=BATCH,
        train_freq=train_freq,
        gradient_steps=gradient_steps,
        buffer_size=BUFFER,
        learning_starts=LEARNING_STARTS,
        target_update_interval=TARGET_EVERY_STEPS,
        learning_rate=LR,
        gamma=GAMMA,
        exploration_initial_eps=EPSILON,
        exploration_final_eps=EPSILON,
        seed=0,
    )

    def go_on(*_: Any) -> bool:
        return not meter.is_over(model.num_timesteps, model._n_updates)

    model.learn(ENDLESS, callback=go_on)
