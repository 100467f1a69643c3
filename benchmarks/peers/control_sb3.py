"""Stable-Baselines3's SAC as it comes, with one update per step."""

import importlib
from typing import Any

from freewheel.bench.worker.meter import Meter

from .control_settings import BATCH, BUFFER, ENDLESS, GAMMA, HIDDEN, LEARNING_STARTS, LR, TAU

sb3: Any = importlib.import_module("stable_baselines3")
env_util: Any = importlib.import_module("stable_baselines3.common.env_util")


def version() -> str:
    return str(sb3.__version__)


def train(meter: Meter, order: dict[str, Any], make: Any = None) -> None:
    """One turn of all envs, then as many updates as it made steps."""
    model = (make or sb3.SAC)(
        "MlpPolicy",
        env_util.make_vec_env(order["env"], n_envs=order["envs"], seed=0),  # steps its envs in turn
        policy_kwargs={"net_arch": list(HIDDEN)},
        batch_size=BATCH,
        train_freq=1,
        gradient_steps=order["envs"],
        buffer_size=BUFFER,
        learning_starts=LEARNING_STARTS,
        learning_rate=LR,
        gamma=GAMMA,
        tau=TAU,
        seed=0,
    )

    def go_on(*_: Any) -> bool:
        return not meter.is_over(model.num_timesteps, model._n_updates)

    model.learn(ENDLESS, callback=go_on)
