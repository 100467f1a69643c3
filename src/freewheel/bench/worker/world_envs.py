"""The envs of `bench worlds`: known step times, small observations."""

import importlib
import time
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

STEP_S = 0.001
# A heavy tail: one step in twenty takes 10 ms, the others what makes the mean 1 ms.
TAIL_SHARE, TAIL_S = 0.05, 0.010
BODY_S = (STEP_S - TAIL_SHARE * TAIL_S) / (1 - TAIL_SHARE)
EPISODE_STEPS = 100


class Timed(gymnasium.Env[Any, Any]):
    """Sleeps or computes for a known time in each step, and does nothing else."""

    def __init__(self, kind: str) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (16,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.kind = kind
        self.count = 0
        self.obs = np.zeros(16, np.float32)
        self.tail = np.random.default_rng(0)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.tail = np.random.default_rng(seed)
        self.count = 0
        return self.obs, {}

    def step(self, action: Any) -> Any:
        if self.kind == "busy":
            until = time.thread_time() + STEP_S
            while time.thread_time() < until:
                pass
        elif self.kind == "heavy":
            time.sleep(TAIL_S if self.tail.random() < TAIL_SHARE else BODY_S)
        else:
            time.sleep(STEP_S)
        self.count += 1
        return self.obs, 0.0, False, self.count >= EPISODE_STEPS, {}


ENVS = ("cartpole", "sleep", "busy", "heavy", "atari")
IDS = {"cartpole": "CartPole-v1", "atari": "ALE/Pong-v5"}


def register_atari() -> None:
    gymnasium.register_envs(importlib.import_module("ale_py"))


def make(env: str) -> Any:
    """One copy, as fast as its makers allow: without the checks that are meant for writing an env."""
    if env == "atari":
        register_atari()
    if env in IDS:
        return gymnasium.make(IDS[env], disable_env_checker=True)
    return Timed(env)


def maker(env: str) -> Any:
    return partial(make, env)
