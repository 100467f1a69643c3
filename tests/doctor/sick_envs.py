"""Envs that are well, and envs with one illness each."""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Well(gymnasium.Env[Any, Any]):
    """Ten steps an episode."""

    observation_space: Any = spaces.Box(-1, 1, (3,), np.float32)
    action_space: Any = spaces.Discrete(2)

    def __init__(self) -> None:
        self.num_steps = 0

    def obs(self) -> Any:
        return np.full(self.observation_space.shape, self.num_steps / 10, self.observation_space.dtype)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.num_steps = 0
        return self.obs(), {}

    def step(self, action: Any) -> Any:
        self.num_steps += 1
        return self.obs(), 1.0, self.num_steps >= 10, False, {}


class Strict(gymnasium.Env[Any, Any]):
    """Well, but refuses what its mask forbids: all but two actions of nine."""

    observation_space: Any = spaces.Dict(
        {"see": spaces.Box(-1, 1, (3,), np.float32), "action_mask": spaces.MultiBinary(9)}
    )
    action_space: Any = spaces.Discrete(9, start=4)

    def see(self) -> Any:
        self.mask = np.zeros(9, np.int8)
        self.mask[self.np_random.choice(9, 2)] = 1
        return {"see": np.zeros(3, np.float32), "action_mask": self.mask}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.num_steps = 0
        return self.see(), {}

    def step(self, action: Any) -> Any:
        if not self.mask[action - 4]:
            raise ValueError(f"action {action} is forbidden")
        self.num_steps += 1
        return self.see(), 1.0, self.num_steps >= 10, False, {}


class StrictByInfo(Strict):
    """The same, with the mask in info."""

    observation_space: Any = spaces.Box(-1, 1, (3,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        seen, _ = super().reset(seed=seed)
        return seen.pop("see"), seen

    def step(self, action: Any) -> Any:
        seen, reward, terminated, truncated, _ = super().step(action)
        return seen.pop("see"), reward, terminated, truncated, seen


class Raises(Well):
    def step(self, action: Any) -> Any:
        if self.num_steps == 5:
            raise RuntimeError("out of fuel")
        return super().step(action)


class Exits(Well):
    def step(self, action: Any) -> Any:
        raise SystemExit(7)


class WrongType(Well):
    def obs(self) -> Any:
        return super().obs().astype(np.float64)


class Hangs(Well):
    """In C, with the interpreter held."""

    def reset(self, **given: Any) -> Any:
        ctypes.PyDLL(None).sleep(1000)


class Crashes(Well):
    def step(self, action: Any) -> Any:
        print("about to crash")
        ctypes.string_at(0)


class Vanishes(Well):
    def step(self, action: Any) -> Any:
        os._exit(3)


class HasHelper(Well):
    """Starts a program of its own and leaves it running."""

    def __init__(self) -> None:
        super().__init__()
        helper = subprocess.Popen(["sleep", "1000"])
        with open(os.environ["SICK_HELPERS"], "a") as file:
            file.write(f"{helper.pid}\n")


class Prints(Well):
    def step(self, action: Any) -> Any:
        print("\x1b[2Jstep", self.num_steps)
        return super().step(action)


class Random(Well):
    def obs(self) -> Any:
        return np.random.default_rng().random(3).astype(np.float32)


class Waits(Well):
    def step(self, action: Any) -> Any:
        time.sleep(0.003)
        return super().step(action)


class NoScreen(Well):
    def __init__(self) -> None:
        raise RuntimeError("No available video device")


class Continuous(Well):
    action_space = spaces.Box(-1, 1, (2,), np.float32)


class FloatImage(Well):
    observation_space = spaces.Box(0, 255, (84, 84, 3), np.float32)


class Unpicklable(Well):
    def __init__(self) -> None:
        super().__init__()
        self.hook = lambda: None


def vector(num_envs: int) -> Any:
    mode = gymnasium.vector.AutoresetMode.SAME_STEP
    return gymnasium.vector.SyncVectorEnv([Well] * num_envs, autoreset_mode=mode)
