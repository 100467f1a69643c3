"""Workload D's env without its simulator: 2.4 ms per step, 52 + 25 floats, 145 actions, episodes of 100 steps."""

import time
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

STEP_S = 0.0024
NUM_OBS, NUM_ACTIONS, EPISODE_STEPS = 52 + 25, 145, 100
KINDS = ("busy", "sleep")


class Slow(gymnasium.Env[Any, Any]):
    """Computes or sleeps for a known time in each step; one action in each state is paid for, so that there is something to learn."""

    def __init__(self, kind: str, step_s: float = STEP_S) -> None:
        if kind not in KINDS:
            raise ValueError(f"there is no slow env {kind!r}")
        self.observation_space = spaces.Box(-1.0, 1.0, (NUM_OBS,), np.float32)
        self.action_space = spaces.Discrete(NUM_ACTIONS)
        self.is_busy, self.step_s = kind == "busy", step_s
        self.count = 0
        self.rng = np.random.default_rng(0)
        self.obs = self._look()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.count = 0
        self.obs = self._look()
        return self.obs, {}

    def step(self, action: Any) -> Any:
        if self.is_busy:
            # The thread's own time: two of them on one core take twice as long, as computing does.
            until = time.thread_time() + self.step_s
            while time.thread_time() < until:
                pass
        else:
            time.sleep(self.step_s)
        reward = float(int(action) == int(self.obs.argmax()))
        self.count += 1
        self.obs = self._look()
        return self.obs, reward, False, self.count >= EPISODE_STEPS, {}

    def _look(self) -> Any:
        return self.rng.uniform(-1.0, 1.0, NUM_OBS).astype(np.float32)


def maker(kind: str, step_s: float = STEP_S) -> Any:
    """What makes one copy; it can be sent to another process."""
    return partial(Slow, kind, step_s)
