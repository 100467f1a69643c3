"""The runs whose values are held: every algorithm, in the sequential runtime, eager on one thread."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field, replace
from typing import Any

from golden_envs import Masked, SmallCatch

COMMON: dict[str, Any] = {
    "runtime": "sequential",
    "learner.compile": "off",
    "learner.threads": 1,
    "eval_episodes": 0,
    "log.tensorboard": False,
    "log.csv": False,
    "checkpoint.keep": 1,
}
# The replay wraps around, the target moves often, and priorities are written many times.
VALUE: dict[str, Any] = {
    "world.lanes": 3,
    "net.hidden": (32, 32),
    "replay.rows": 900,
    "replay.warmup_rows": 300,
    "learner.batch_size": 16,
    "learner.ratio": 2.5,
    "learner.target_every_updates": 40,
    "checkpoint.replay": True,
}
EPSILON: dict[str, Any] = {"explore.over_steps": 1_000}
POLICY: dict[str, Any] = {
    "world.lanes": 3,
    "net.hidden": (32, 32),
    "rollout.rows": 40,
    "ppo.minibatches": 3,
    "ppo.epochs": 3,
}
IMAGES: dict[str, Any] = {
    "world.stack": 2,
    "net.channels": (8, 16),
    "net.kernels": (4, 3),
    "net.strides": (2, 1),
    "net.hidden": (32,),
}
RETURNS: dict[str, Any] = {"q.num_atoms": 21, "q.v_min": 0.0, "q.v_max": 60.0}


@dataclass(frozen=True)
class Case:
    """One run. It is also stopped at `stop_at`, within a rollout and between two checkpoints, and resumed."""

    algo: str
    settings: dict[str, Any] = field(repr=False)
    env: Any = "CartPole-v1"
    steps: int = 2_000
    trace_every: int = 200
    seed: int = 0

    @property
    def stop_at(self) -> int:
        return self.steps // 2 + 37

    @property
    def num_lanes(self) -> int:
        return int(self.settings["world.lanes"])

    @property
    def newest_rows(self) -> int:
        return int(self.settings.get("rollout.rows", 0))


def _case(algo: str, *layers: dict[str, Any], **more: Any) -> Case:
    settings: dict[str, Any] = dict(COMMON)
    for layer in layers:
        settings |= layer
    return Case(algo, settings, **more)


_CASES = {
    # Many lanes: an epsilon that comes a turn too late then changes some actions for certain, not by luck.
    "dqn": _case("dqn", VALUE, EPSILON, {"world.lanes": 16, "replay.rows": 1_600}),
    "dqn-options": _case(
        "dqn",
        VALUE,
        {
            "world.stack": 2,
            "world.reward_scale": 0.5,
            "world.reward_clip": 0.4,
            "q.n_step": 3,
            "q.dueling": True,
            "q.loss": "mse",
            "explore.schedule": "ladder",
            "explore.hold_steps": 3,
            "explore.pulse_every_steps": 500,
            "explore.pulse_steps": 50,
            "learner.updates_per_call": 4,
            "learner.accumulate": 2,
            "learner.optimizer": "adamw",
            "learner.lr_schedule": "cosine",
            "learner.lr_warmup_updates": 20,
            "learner.tau": 0.3,
        },
    ),
    "rainbow": _case("rainbow", VALUE, RETURNS),
    "iqn": _case("iqn", VALUE, EPSILON, {"q.num_taus": 8, "q.num_target_taus": 8, "q.num_act_taus": 8}),
    "qrdqn": _case("qrdqn", VALUE, EPSILON, {"q.num_quantiles": 11}),
    "qrdqn-per": _case("qrdqn", VALUE, EPSILON, {"q.num_quantiles": 11, "replay.prioritized": True, "q.n_step": 2}),
    "c51": _case("c51", VALUE, EPSILON, RETURNS),
    "dqn-images": _case("dqn", VALUE, EPSILON, IMAGES, env=SmallCatch, steps=1_500),
    "ppo": _case("ppo", POLICY),
    "ppo-normal": _case(
        "ppo",
        POLICY,
        {
            "ppo.normalize_obs": True,
            "ppo.normalize_reward": True,
            "ppo.value_clip": 0.2,
            "ppo.target_kl": 0.02,
            "ppo.clip_schedule": "linear",
            "learner.lr_schedule": "linear",
            "world.stack": 2,
        },
    ),
    "ppo-masks": _case("ppo", POLICY, env=Masked),
    "ppo-continuous": _case("ppo", POLICY, {"world.max_episode_steps": 50}, env="Pendulum-v1"),
    "ppo-episodes": _case("ppo", POLICY, {"rollout.collect": "episodes", "net.shared": True}),
    "ppo-images": _case("ppo", POLICY, IMAGES, env=SmallCatch, steps=1_500),
    "appo": _case("appo", POLICY),
}
# Each has its own seed: with the same draws in all of them, what one does not notice the others might not either.
CASES = {name: replace(case, seed=zlib.crc32(name.encode()) % 1_000) for name, case in _CASES.items()}
