"""Stable-Baselines3's PPO as it comes: envs in turn for CartPole, a process for each slow env."""

import importlib
from typing import Any

from freewheel.bench.worker.meter import Meter

from . import ppo_settings as same
from .slow_env import maker

sb3: Any = importlib.import_module("stable_baselines3")
env_util: Any = importlib.import_module("stable_baselines3.common.env_util")
vec_env: Any = importlib.import_module("stable_baselines3.common.vec_env")
callbacks: Any = importlib.import_module("stable_baselines3.common.callbacks")


def version() -> str:
    return str(sb3.__version__)


class Watch(callbacks.BaseCallback):  # type: ignore[misc]
    """Asks the meter when a rollout has just been learned from, which is when the next one begins."""

    def __init__(self, meter: Meter, steps_per_rollout: int) -> None:
        super().__init__()
        self.meter, self.steps_per_rollout, self.is_over = meter, steps_per_rollout, False

    def _on_rollout_start(self) -> None:
        steps = self.num_timesteps
        self.is_over = self.meter.is_over(steps, steps // self.steps_per_rollout * same.UPDATES_PER_ROLLOUT)

    def _on_step(self) -> bool:
        return not self.is_over


def make_envs(order: dict[str, Any]) -> Any:
    if "slow" not in order:
        return env_util.make_vec_env(same.ENV, n_envs=order["envs"], seed=0)
    # A fork starts hundreds of processes in seconds; SB3's own choice imports everything in each of them.
    return vec_env.SubprocVecEnv([maker(order["slow"])] * order["envs"], start_method="fork")


def train_by(algo: Any, meter: Meter, order: dict[str, Any], **more: Any) -> None:
    """Trains by a class that takes SB3's arguments."""
    is_slow = "slow" in order
    rollout = same.SLOW_ROLLOUT if is_slow else same.ROLLOUT
    envs = make_envs(order)
    model = algo(
        "MlpPolicy",
        envs,
        policy_kwargs={"net_arch": list(same.HIDDEN)},
        n_steps=rollout,
        batch_size=same.rows_per_update(order["envs"], rollout),
        n_epochs=same.EPOCHS,
        learning_rate=same.SLOW_LR if is_slow else same.LR,
        gamma=same.GAMMA,
        gae_lambda=same.GAE_LAMBDA,
        clip_range=same.CLIP,
        ent_coef=same.ENTROPY_WEIGHT,
        vf_coef=same.VALUE_WEIGHT,
        max_grad_norm=same.CLIP_NORM,
        seed=0,
        **more,
    )
    model.learn(same.ENDLESS, callback=Watch(meter, rollout * order["envs"]))
    envs.close()


def train(meter: Meter, order: dict[str, Any]) -> None:
    train_by(sb3.PPO, meter, order, device="cpu")
