"""Envs that workers of a pool make: they wait, hang, die or break their contract where they are told to."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

FLAT = spaces.Box(-np.inf, np.inf, (2,), np.float32)
PARTS = spaces.Dict({"a": FLAT, "b": spaces.Discrete(5)})


class Told(gymnasium.Env[Any, Any]):
    """Shows its seed and step. At step `at` it does what it is told; with a `once` file only if that is not there yet."""

    def __init__(self, fault: str = "", at: int = 3, once: str = "", length: int = 10**9) -> None:
        self.observation_space: Any = PARTS if fault == "missing" else FLAT
        self.action_space = spaces.Discrete(3)
        self.fault, self.at, self.once, self.length = fault, at, once, length
        self.count, self.seed = 0, 0
        if fault == "unmade":
            raise ValueError("no such map")
        if fault == "helper":
            self.helper = subprocess.Popen(["sleep", "600"])
            Path(once).write_text(str(self.helper.pid))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count, self.seed = 0, seed or 0
        if self.fault == "slow reset" and self.at == 0:
            wait_for(self.once)
        self.at -= self.fault == "slow reset"
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        obs = self.observe()
        if self.count == self.at and not (self.fault in ("die", "hang") and self.has_happened()):
            if self.fault == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.fault == "hang":
                time.sleep(600)
            if self.fault == "wait":
                wait_for(self.once)
            if self.fault == "raise":
                raise RuntimeError("motor broke")
            if self.fault == "exit":
                os._exit(7)
            if self.fault == "exit 0":
                os._exit(0)
            if self.fault == "sys.exit":
                raise SystemExit(0)
            if self.fault == "shape":
                obs = np.zeros(3, np.float32)
            if self.fault == "missing":
                del obs["b"]
        return obs, float(action), False, self.count >= self.length, {}

    def close(self) -> None:
        if self.fault == "close":
            raise OSError("port in use")

    def observe(self) -> Any:
        flat = np.array([self.seed % 1000, self.count], np.float32)
        return {"a": flat, "b": 1} if self.fault == "missing" else flat

    def has_happened(self) -> bool:
        if not self.once:
            return False
        try:
            Path(self.once).touch(exist_ok=False)
        except FileExistsError:
            return True
        return False


class Sleeping(Told):
    def step(self, action: Any) -> Any:
        time.sleep(0.002)
        return super().step(action)


class Busy(Told):
    def step(self, action: Any) -> Any:
        until = time.thread_time() + 0.002
        while time.thread_time() < until:
            pass
        return super().step(action)


def wait_for(path: str) -> None:
    until = time.monotonic() + 60
    while not Path(path).exists() and time.monotonic() < until:
        time.sleep(0.005)
