"""The corpus of sick envs: every illness in every world, runtime and algorithm, with the outcome that each must have."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from itertools import product
from typing import Any

import gymnasium
import numpy as np
from fault_envs import BAD, Plain, bad
from gymnasium import spaces

AT = 30  # the step of an env at which it falls ill
# An env that breaks its contract ends the run at once: the same would come again. One that raises is tried again.
BREACHES = (*BAD, "four", "no_info", "text", "not_a_flag")
RAISES = ("step", "reset", "exit_0", "exit_3", "exit_reset", "interrupt")
DEATHS = ("os_exit_0", "os_exit_3", "kill", "abort", "crash", "closes")
HANGS = ("sleeps", "holds")
HARMLESS = ("close", "prints", "thread")
ILLNESSES = (*BREACHES, *RAISES, *DEATHS, *HANGS, *HARMLESS)


class Sick(Plain):
    """Well for AT steps. Continuous actions are for SAC."""

    pause_s = 0.0

    def __init__(self, what: str = "", continuous: bool = False) -> None:
        super().__init__()
        self.what = what
        if continuous:
            self.action_space: Any = spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        found = super().reset(seed=seed)
        if self.count >= AT:
            if self.what == "reset":
                raise OSError("port in use")
            if self.what == "exit_reset":
                sys.exit(0)
            if self.what == "no_info":
                return found[0]
        return found

    def step(self, action: Any) -> Any:
        obs, reward, ended, cut, info = super().step(int(np.ravel(action)[0] > 0))
        if self.count == AT:
            fall_ill(self.what)
        if self.count % AT == 0:
            if self.what in BAD:
                obs, reward = bad(self.what, obs)
            if self.what == "four":
                return obs, reward, ended, info
            reward = "much" if self.what == "text" else reward  # type: ignore[assignment]
            ended = "no" if self.what == "not_a_flag" else ended
        return obs, reward, ended, cut, info

    def close(self) -> None:
        if self.what == "close" and self.count:
            raise KeyError("who has the door key")


def fall_ill(what: str) -> None:
    """What an env does at a step."""
    if what == "step":
        raise ValueError("motor broke")
    if what == "interrupt":
        raise KeyboardInterrupt
    if what.startswith("exit_") and what[-1].isdigit():
        sys.exit(int(what[-1]))
    if what.startswith("os_exit"):
        os._exit(int(what[-1]))
    if what in ("kill", "abort"):
        os.kill(os.getpid(), signal.SIGKILL if what == "kill" else signal.SIGABRT)
    if what == "crash":
        ctypes.string_at(0)
    if what == "closes":
        os.closerange(3, 4096)
        time.sleep(1)  # what holds its files has the time to see them closed
    if what == "sleeps":
        time.sleep(1000)
    if what == "holds":
        ctypes.PyDLL(None).sleep(1000)
    if what == "prints":
        print("\x1b[2J" + "x" * 100_000)
    if what == "thread":
        threading.Thread(target=time.sleep, args=(2,)).start()


def vector(num_envs: int, **kwargs: Any) -> Any:
    return gymnasium.vector.SyncVectorEnv([lambda: Sick(**kwargs)] * num_envs)


@dataclass(frozen=True)
class Case:
    what: str
    world: str
    runtime: str
    algo: str

    def __str__(self) -> str:
        return "-".join((self.what, self.world, self.runtime, self.algo))

    @property
    def env(self) -> str:
        return "sick_corpus:vector" if self.world == "vector" else "sick_corpus:Sick"

    def settings(self) -> dict[str, Any]:
        kwargs = {"what": self.what, **({"continuous": True} if self.algo == "sac" else {})}
        return {
            "algo": self.algo,
            "runtime": self.runtime,
            "steps": 400,
            "world.lanes": 2,
            "world.kind": self.world,
            "world.kwargs": json.dumps(kwargs),
            "net.hidden": (8,),
            "eval_episodes": 0,
            "checkpoint.every_steps": 20,
            "log.tensorboard": False,
            "log.folder": "runs",
            **(ROLLOUTS if self.algo == "ppo" else REPLAY),
            **({"world.workers": 1, "world.threads": 1} if self.world == "pool" else {}),
            **(LOCAL if self.runtime == "local" else {}),
        }


ROLLOUTS = {"rollout.rows": 8, "ppo.minibatches": 2}
REPLAY = {"learner.batch_size": 8, "learner.ratio": 1.0, "replay.warmup_rows": 16, "replay.rows": 2_000}
LOCAL = {"local.actors": 1, "local.restarts": 1, "local.step_timeout_s": 1.5, "learner.workers": 1}


@dataclass(frozen=True)
class Outcome:
    """`error` is the class of the last error that is shown, "" for none. `code` is the command's, `status` that of the run folder. Errors
    and statuses are patterns.
    """

    code: int
    error: str
    status: str
    words: str = ""


FINISHED = Outcome(0, "", "finished")
BROKE = Outcome(1, "EnvError", "failed", "sick_corpus")
# What gymnasium's SyncVectorEnv makes of a breach, before a world sees it: the right type, or an error of its own.
CAST, REFUSED = ("dtype", "not_a_flag"), ("shape", "none", "four", "no_info", "text")
KILLED_BY = {"kill": -9, "abort": -6, "crash": -11}


def outcome_of(case: Case) -> Outcome:
    """What each illness must lead to. No algorithm makes a difference. A checkpoint of the steps before must always be there."""
    what = case.what
    if what == "closes" and case.world == "pool":
        return FINISHED  # its worker needs no file to go on: the memory that it shares stays mapped
    if what in CAST and case.world == "vector":
        return FINISHED
    if what in BREACHES:
        is_raised = what in REFUSED and case.world == "vector" and case.runtime == "local"
        return replaced("") if is_raised else BROKE
    if what in HARMLESS and not (what == "close" and case.runtime == "sequential"):
        return FINISHED
    words = {"step": "motor broke", "reset": "port in use", "interrupt": "KeyboardInterrupt"}.get(what, "")
    return replaced(words) if case.runtime == "local" else alone(case, words)


def replaced(words: str) -> Outcome:
    """An actor that falls ill again in each of its lives."""
    return Outcome(1, "RoleLost", "failed", f"actor-0 ended 2 times.*{words}")


def alone(case: Case, words: str) -> Outcome:
    """Of the only process of a sequential run. If its env ends it, only the run folder can tell."""
    what = case.what
    if what == "close":
        return Outcome(1, "EnvError", "finished", "door key")
    if what in RAISES or case.world == "pool":
        return INTERRUPTED if what == "interrupt" and case.world != "pool" else Outcome(1, "EnvError", "failed", words)
    if what == "closes":  # noticed when a file is next used, whichever that is
        return Outcome(1, "EnvError|CheckpointError", "finished|failed|unsaved", "closerange|Bad file descriptor")
    return Outcome(KILLED_BY[what] if what in KILLED_BY else int(what[-1]), "", "died")


INTERRUPTED = Outcome(130, "", "failed")  # a KeyboardInterrupt is one, whoever raises it


def all_cases() -> list[Case]:
    """An env that hangs in a sequential run hangs its only process, as it would without us: Ctrl-C twice ends it."""
    found = [
        Case(*parts)
        for parts in product(ILLNESSES, ("inline", "pool", "vector"), ("sequential", "local"), ("dqn", "ppo", "sac"))
    ]
    return [case for case in found if case.runtime == "local" or case.what not in HANGS]


def quick_cases() -> list[Case]:
    """Each illness in one sequential run, with the worlds and algorithms in turn; then a few that start processes, which take seconds."""
    worlds, algos = ("inline", "vector"), ("dqn", "ppo", "sac")
    alone = [what for what in ILLNESSES if what not in HANGS]
    found = [Case(what, worlds[i % 2], "sequential", algos[i // 2 % 3]) for i, what in enumerate(alone)]
    more = (
        "crash-pool-sequential-ppo",
        "text-pool-sequential-sac",
        "closes-inline-local-dqn",
        "holds-vector-local-sac",
    )
    return found + [Case(*one.split("-")) for one in more]
