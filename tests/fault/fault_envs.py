"""Envs that do what envs should not, each by name as `fault_envs:name`, and a loss that turns bad."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

MAGIC = 0x5EED_F00D_CAFE
EPISODE = 25


class Numbered(gymnasium.Env[Any, Any]):
    """Every observation says who gave it and the how-manieth it is; a file keeps how many there were, whoever dies."""

    observation_space = spaces.Box(0, 2**62, (3,), np.int64)
    action_space = spaces.Discrete(2)
    made = 0

    def __init__(self, pause_s: float = 0.0) -> None:
        Numbered.made += 1
        self.who, self.count, self.pause_s = os.getpid() * 1000 + Numbered.made, 0, pause_s
        Path("given").mkdir(exist_ok=True)
        path = Path("given") / str(self.who)
        path.write_bytes(bytes(8))
        with open(path, "r+b") as file:
            self.given = mmap.mmap(file.fileno(), 8)

    def observe(self) -> np.ndarray[Any, Any]:
        self.count += 1
        self.given[:] = self.count.to_bytes(8, "little")
        return np.array([MAGIC, self.who, self.count])

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.end = self.count + EPISODE
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        if self.pause_s:
            time.sleep(self.pause_s)
        obs = self.observe()
        return obs, float(self.count), self.count >= self.end, False, {}

    def close(self) -> None:
        self.given.close()


class Plain(gymnasium.Env[Any, Any]):
    """Does as it should, slowly, so that a run does not take all of the machine; its subclasses do not."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)
    pause_s = 0.002

    def __init__(self) -> None:
        self.count = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.draws = np.random.default_rng(seed)
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        if self.pause_s:
            time.sleep(self.pause_s)
        return self.observe(), float(action), self.count % EPISODE == 0, False, {}

    def observe(self) -> np.ndarray[Any, Any]:
        return self.draws.uniform(-1, 1, 2).astype(np.float32)


class Raises(Plain):
    """Raises where it is told to: step, reset, close, or when it is made in a run whose spaces are known."""

    def __init__(self, where: str = "", at: int = 40) -> None:
        super().__init__()
        self.where, self.at = where, at
        if where == "make" and not first_time("made"):
            raise RuntimeError("no simulator here")

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if self.where == "reset" and self.count >= self.at:
            raise OSError("port in use")
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        if self.where == "step" and self.count >= self.at:
            raise ValueError("motor broke")
        return super().step(action)

    def close(self) -> None:
        if self.where == "close" and self.count:
            raise KeyError("who has the door key")


class Leaves(Plain):
    """Ends its process at its `at`-th step without an error: `how` is os._exit or sys.exit, both with 0."""

    def __init__(self, how: str = "os._exit", at: int = 40) -> None:
        super().__init__()
        self.how, self.at = how, at

    def step(self, action: Any) -> Any:
        if self.count == self.at:
            {"os._exit": os._exit, "sys.exit": sys.exit}[self.how](0)
        return super().step(action)


def leaves_together(num_envs: int, **kwargs: Any) -> Any:
    """Copies of it as a vector env."""
    makes = [lambda: Leaves(**kwargs)] * num_envs
    return gymnasium.vector.SyncVectorEnv(makes, autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP)


class Hangs(Plain):
    """Its first life sleeps for ever in Python, its second in C with the interpreter's lock held; then it is healed."""

    def step(self, action: Any) -> Any:
        if self.count == 20:
            if first_time("slept"):
                time.sleep(1000)
            if first_time("held"):
                ctypes.PyDLL(None).sleep(1000)
        return super().step(action)


class Lingers(Plain):
    """Takes its time to close."""

    def close(self) -> None:
        if self.count:
            time.sleep(60)


class Stubborn(Lingers):
    """And does not listen."""

    def close(self) -> None:
        while self.count:
            with contextlib.suppress(KeyboardInterrupt):
                super().close()


class Threaded(Plain):
    """Starts a thread that never ends."""

    def __init__(self) -> None:
        super().__init__()
        threading.Thread(target=threading.Event().wait).start()


class Gives(Plain):
    """Gives one bad thing at every `every`-th step."""

    def __init__(self, what: str = "nan_obs", every: int = 40) -> None:
        super().__init__()
        self.what, self.every = what, every

    def step(self, action: Any) -> Any:
        obs, reward, ended, cut, info = super().step(action)
        if self.count % self.every == 0:
            obs, reward = bad(self.what, obs)
        return obs, reward, ended, cut, info


def bad(what: str, obs: np.ndarray[Any, Any]) -> tuple[Any, float]:
    values = {"nan_obs": np.nan, "inf_obs": np.inf}
    if what in values:
        obs[1] = values[what]
        return obs, 0.0
    if what in ("nan_reward", "inf_reward"):
        return obs, float(what[:3])
    return {"shape": np.zeros(3, np.float32), "dtype": obs.astype(np.float64), "none": None}[what], 0.0


BAD = ("nan_obs", "inf_obs", "nan_reward", "inf_reward", "shape", "dtype", "none")


class Helped(Plain):
    """Has a program and a forked process beside it, which ignore what can be ignored. Their ids are in `helpers`."""

    def __init__(self) -> None:
        super().__init__()
        self.pids: list[int] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if not self.pids:
            self.program = subprocess.Popen(["sleep", "600"])
            self.pids = [self.program.pid, forked()]
            with open("helpers", "a") as file:
                file.write("".join(f"{pid}\n" for pid in self.pids))
        return super().reset(seed=seed)

    def close(self) -> None:
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)
        if self.pids:
            self.program.wait()
            os.waitpid(self.pids[1], 0)


class Detached(Plain):
    """Leaves a program and a process in sessions of their own, forked twice so that they have no parent here. Their ids are in `helpers`."""

    works: tuple[Any, ...] = (lambda: os.execvp("sleep", ["sleep", "600"]), lambda: time.sleep(600))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if not self.count:
            self.count = 1
            with open("helpers", "a") as file:
                for work in self.works:
                    file.write(f"{detached(work)}\n")
        return super().reset(seed=seed)


class DetachedPrograms(Detached):
    """Two programs."""

    works = (Detached.works[0], Detached.works[0])


def detached(work: Any) -> int:
    """The process of a daemon, as daemons are made."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        os.setsid()
        if (pid := os.fork()) == 0:
            os.close(reader)
            os.close(writer)
            work()
        os.write(writer, str(pid).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with open(reader) as file:
        return int(file.read())


def forked() -> int:
    pid = os.fork()
    if pid == 0:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        time.sleep(600)
        os._exit(0)
    return pid


def first_time(name: str) -> bool:
    """Once in a run, whoever asks."""
    try:
        os.close(os.open(name, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


class Evaluated(Plain):
    """Does as it should while it is trained in. Made again after that, it does what it is told to. Processes that make it are in `made`."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    pause_s = 0.0

    def __init__(self, how: str = "endless", folder: str = ".", render_mode: str | None = None) -> None:
        super().__init__()
        self.folder, self.render_mode = Path(folder), render_mode
        self.how = how if any(self.folder.glob("runs/*/checkpoints/step-*")) else ""
        with open(self.folder / "made", "a") as file:
            file.write(f"{os.getpid()}\n")

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if self.how == "helped":
            with open(self.folder / "helpers", "a") as file:
                file.write(f"{subprocess.Popen(['sleep', '600']).pid}\n")
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        obs, reward, ended, cut, info = super().step(action)
        if self.count % EPISODE == 20 and self.how:
            (self.folder / "evaluated").touch()
            if self.how in ("hangs", "helped"):
                time.sleep(1000)
            ends = {"holds": lambda: ctypes.PyDLL(None).sleep(1000), "dies": lambda: ctypes.string_at(0)}
            ends |= {"exits": lambda: os._exit(0), "raises": lambda: 1 / 0}
            ends.get(self.how, lambda: None)()
        return obs, reward, ended and self.how != "endless", cut, info

    def render(self) -> np.ndarray[Any, Any]:
        return np.zeros((16, 16, 3), np.uint8)

    def close(self) -> None:
        if self.how == "lingers":
            time.sleep(1000)
