"""The trainings of the speed gate, as settings of the public `freewheel.train`; frozen, so that both sides do the same work.

Whatever the package would choose by a trial on this machine is set: two sides must not choose differently.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

ENDLESS = 10**9  # the meter stops the training
CARTPOLE = "CartPole-v1"
# Old name of a setting -> its name in the checkout. The base keeps the old names.
RENAMED: dict[str, str] = {}

COMMON: dict[str, Any] = {
    "learner.threads": 1,
    "checkpoint.every_steps": 0,
    "eval_episodes": 0,
    "log.tensorboard": False,
}
DQN: dict[str, Any] = {
    "runtime": "local",
    "local.actors": 1,
    "local.pin": "off",
    "world.kind": "inline",
    "world.lanes": 16,
    "net.hidden": (128, 128),
    "q.double": False,
    "explore.schedule": "constant",
    "explore.end": 0.05,
    "replay.rows": 100_000,
    "replay.warmup_rows": 3_200,
    "learner.batch_size": 128,
    "learner.ratio": 32.0,
    "learner.lr": 2.5e-4,
    "learner.target_every_updates": 125,
    "learner.compile": "on",
    "learner.updates_per_call": 25,
    "learner.workers": 1,
}
PPO: dict[str, Any] = {
    "world.kind": "inline",
    "net.hidden": (64, 64),
    "net.activation": "tanh",
    "rollout.rows": 128,
    "ppo.epochs": 4,
    "ppo.minibatches": 4,
    "learner.lr": 2.5e-4,
    "learner.compile": "on",
}
PIXELS: dict[str, Any] = {
    "world.lanes": 8,
    "world.stack": 4,
    "net.hidden": (512,),
    "replay.rows": 50_000,
    "replay.warmup_rows": 1_000,
    "learner.batch_size": 32,
    "learner.ratio": 8.0,
    "learner.lr": 1e-4,
    "learner.target_every_updates": 250,
    "learner.updates_per_call": 1,
    "learner.memory_format": "channels_last",
    "local.act_precision": "fp32",
}
SEQUENTIAL: dict[str, Any] = {"runtime": "sequential"}
LOCAL_ONLY = ("local.actors", "local.pin", "learner.workers")
# So few rows are drawn per step that no update is ever due.
NEVER: dict[str, Any] = {"learner.ratio": 1e-9, "learner.compile": "off", "learner.updates_per_call": 1}
RANDOM: dict[str, Any] = {"explore.end": 1.0}


@dataclass(frozen=True)
class SpeedCase:
    """One training and the speed that counts: steps or updates per second."""

    algo: str
    settings: Mapping[str, Any] = field(repr=False)
    unit: str = "steps"
    env: str = CARTPOLE
    least_updates: int = 64
    added: Mapping[str, Any] = field(default_factory=dict)  # settings that the base lacks, at what it does

    @property
    def is_one_process(self) -> bool:
        """Whether the CPU time of its process is all the work there is."""
        return self.settings["runtime"] == "sequential" and self.settings["world.kind"] != "pool"


def _dqn(*layers: Mapping[str, Any], algo: str = "dqn", **more: Any) -> SpeedCase:
    settings = {**COMMON, **DQN}
    for layer in layers:
        settings |= layer
    if settings["runtime"] == "sequential":
        for name in LOCAL_ONLY:
            del settings[name]
    return SpeedCase(algo, settings, **more)


def _ppo(lanes: int, *layers: Mapping[str, Any], algo: str = "ppo", **more: Any) -> SpeedCase:
    settings = {**COMMON, **PPO, **SEQUENTIAL, "world.lanes": lanes}
    for layer in layers:
        settings |= layer
    return SpeedCase(algo, settings, **more)


def _world(**settings: Any) -> SpeedCase:
    """Random actions, written and never learned from: the world takes most of it."""
    return _dqn(
        SEQUENTIAL, NEVER, RANDOM, {f"world.{name}": value for name, value in settings.items()}, least_updates=0
    )


TAUS = {"q.num_taus": 8, "q.num_target_taus": 8, "q.num_act_taus": 32, "q.num_cosines": 64}
# A rollout that no window can fill: 3.2 million rows, where a fast machine takes 140,000 a second.
UNFILLED = {"rollout.rows": 400_000, "ppo.minibatches": 1, "ppo.epochs": 1, "learner.compile": "off"}

CASES: dict[str, SpeedCase] = {
    "dqn": _dqn(),
    "per": _dqn({"replay.prioritized": True, "q.n_step": 3}),
    "iqn": _dqn(TAUS, algo="iqn", added={"q.head": "linear"}),
    "ppo/8": _ppo(8),
    "ppo/64": _ppo(64),
    "appo": _ppo(64, {"runtime": "local", "local.actors": 1, "local.pin": "off"}, algo="appo"),
    "pixels": _dqn(PIXELS, env="speed_cases:make_frames"),
    "worlds/inline": _world(lanes=64, kind="inline"),
    "worlds/vector": _world(lanes=64, kind="vector"),
    "worlds/pool": _world(lanes=64, kind="pool", workers=2),
    "actor/dqn": _dqn(SEQUENTIAL, NEVER, least_updates=0),
    "actor/ppo": _ppo(8, UNFILLED, least_updates=0),
    # 32 updates per step of one lane: next to nothing but calls of the learner.
    "learner/dqn": _dqn(
        SEQUENTIAL, {"world.lanes": 1, "learner.ratio": 4_096.0, "learner.updates_per_call": 1}, unit="updates"
    ),
    "learner/ppo": _ppo(8, {"ppo.epochs": 50}, unit="updates"),
}


class Frames(gymnasium.Env[Any, Any]):
    """A bright block that wanders over grey frames of 84 x 84; a step takes half a millisecond of work, as one of Pong does."""

    observation_space = spaces.Box(0, 255, (84, 84), np.uint8)
    action_space = spaces.Discrete(6)
    STEP_S, EPISODE_STEPS, BLOCK = 5e-4, 1_000, 8

    def __init__(self) -> None:
        self._at = np.zeros(2, np.int64)
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        self._at = self.np_random.integers(0, 84 - self.BLOCK, 2)
        return self._frame(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        until = time.thread_time() + self.STEP_S  # work, not waiting: two of them on one core take twice as long
        way = int(self.np_random.integers(6))
        self._at = np.clip(self._at + np.array([way % 3 - 1, way // 3]), 0, 84 - self.BLOCK)
        self._steps += 1
        frame = self._frame()
        while time.thread_time() < until:
            pass
        return frame, float(int(action) == way), False, self._steps >= self.EPISODE_STEPS, {}

    def _frame(self) -> Any:
        frame = np.full((84, 84), 20, np.uint8)
        y, x = self._at
        frame[y : y + self.BLOCK, x : x + self.BLOCK] = 255
        return frame


def make_frames() -> Frames:
    return Frames()
