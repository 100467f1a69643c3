"""Small runs of every family of algorithms, for the tests of runs."""

from __future__ import annotations

import csv
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import freewheel
from freewheel import Callback, Episode, Moment
from freewheel.config import assemble
from freewheel.run.layout import choose
from freewheel.run.plan import Plan, Setup
from freewheel.run.runtime import make_sequential, plan_local
from freewheel.run.sequential import Sequential
from freewheel.store.checkpoint import load_newest

RUNTIMES = ("sequential", "local")
LANES = 4
COMMON: dict[str, Any] = {
    "world.lanes": LANES,
    "net.hidden": (16,),
    "learner.compile": "off",
    "eval_episodes": 0,
    "log.tensorboard": False,
    "checkpoint.every_steps": 0,
}
REPLAY: dict[str, Any] = {
    "replay.rows": 2000,
    "replay.warmup_rows": 100,
    "learner.batch_size": 16,
    "learner.ratio": 8.0,
}
ROLLOUT: dict[str, Any] = {"rollout.rows": 16, "ppo.minibatches": 2, "ppo.epochs": 2}
A_ROLLOUT = LANES * ROLLOUT["rollout.rows"]
UPDATES_A_ROLLOUT = ROLLOUT["ppo.minibatches"] * ROLLOUT["ppo.epochs"]
# One of each family: values, distributions with priorities and noise, rollouts, rollouts of older policies.
FAMILIES: dict[str, dict[str, Any]] = {
    "dqn": REPLAY,
    "rainbow": {**REPLAY, "q.num_atoms": 11},
    "ppo": ROLLOUT,
    "appo": ROLLOUT,
}


def settings_of(algo: str, folder: Path | str = "none", /, **more: Any) -> dict[str, Any]:
    return {**COMMON, **FAMILIES[algo], "log.folder": str(folder), **more}


def train(
    folder: Path, algo: str, runtime: str = "sequential", env: Any = "CartPole-v1", steps: int = 1200, **more: Any
) -> freewheel.Run:
    settings = settings_of(algo, folder, runtime=runtime, **more.pop("settings", {}))
    more = {"is_quiet": True, "preset": "none", **more}
    return freewheel.train(env, algo=algo, steps=steps, settings=settings, **more)


def resume(run: freewheel.Run, steps: int | None = None, **more: Any) -> freewheel.Run:
    return freewheel.train(resume=run.folder, steps=steps, **{"is_quiet": True, **more})


def planned(algo: str = "dqn", env: Any = "CartPole-v1", body: Any = None, /, **settings: Any) -> Plan:
    """The plan of a local run on two cores."""
    given = {**settings_of(algo), "runtime": "local", "algo": algo, "learner.workers": 1, **settings}
    config = assemble("CartPole-v1", given, "none")
    return plan_local(Setup(config, env, choose(config, 2), body))


def built(algo: str = "dqn", env: Any = "CartPole-v1", /, **settings: Any) -> Sequential:
    """A sequential run that takes turns by hand."""
    config = assemble("CartPole-v1", {**settings_of(algo), "runtime": "sequential", "algo": algo, **settings}, "none")
    return make_sequential(Setup(config, env, choose(config, 1)))


def saved(run: freewheel.Run) -> dict[str, Any]:
    return load_newest(run.folder / "checkpoints").state


def logged(run: freewheel.Run, name: str) -> list[float]:
    """The values of a metric, where it has some."""
    with open(run.folder / "metrics.csv") as file:
        return [float(row[name]) for row in csv.DictReader(file) if row.get(name)]


def assert_same(one: freewheel.Run, two: freewheel.Run) -> None:
    """All that two runs saved, but for the time they took."""
    kept, others = (load_newest(run.folder / "checkpoints") for run in (one, two))
    assert kept.tensors.keys() == others.tensors.keys()
    for name, tensor in kept.tensors.items():
        assert torch.equal(tensor, others.tensors[name]), name
    assert _timeless(kept.state) == _timeless(others.state)


def _timeless(state: Any) -> Any:
    if not isinstance(state, dict):
        return state
    return {name: _timeless(value) for name, value in state.items() if name not in ("config", "seconds", "signature")}


class StopAt(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, moment: Moment) -> None:
        if moment.step >= self.step:
            moment.stop()


class At(Callback):
    """Does something once, when so many updates were made."""

    def __init__(self, updates: int, act: Callable[[Moment], None]) -> None:
        self.updates, self.act, self.is_done = updates, act, False

    def on_update(self, moment: Moment) -> None:
        if moment.updates >= self.updates and not self.is_done:
            self.is_done = True
            self.act(moment)


class Watch(Callback):
    """Notes all that it is told."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.updates: list[int] = []
        self.metrics: dict[str, float] = {}
        self.paths: list[Path] = []
        self.episodes: list[Episode] = []

    def on_step(self, moment: Moment) -> None:
        self.steps.append(moment.step)

    def on_update(self, moment: Moment) -> None:
        self.updates.append(moment.updates)
        self.metrics = moment.metrics() or self.metrics

    def on_episode(self, moment: Moment, episode: Episode) -> None:
        self.episodes.append(episode)

    def on_checkpoint(self, moment: Moment, path: Path) -> None:
        self.paths.append(path)


def kill(role: str) -> Callable[[Moment], None]:
    """SIGKILL to a role of a local run, by its name."""

    def act(moment: Moment) -> None:
        (member,) = [one for one in moment._runtime._supervisor.roles if one.name == role]  # type: ignore[union-attr]
        os.kill(member.pid, signal.SIGKILL)

    return act
