"""What every runtime promises: the same parts, the same results to read, whichever way they run."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import freewheel
from freewheel import Callback, Episode, Moment
from freewheel.config import Config
from freewheel.errors import ConfigError, EnvError
from freewheel.run.checkpoint import load_newest
from freewheel.run.parts import seed_of
from freewheel.worlds.seeds import episode_seed, lane_key

RUNTIMES = ("sequential", "local")
TINY: dict[str, Any] = {
    "world.lanes": 4,
    "net.hidden": (16,),
    "replay.rows": 2000,
    "replay.warmup_rows": 100,
    "learner.batch_size": 16,
    "learner.ratio": 8.0,
    "learner.compile": "off",
    "eval_episodes": 5,
    "log.tensorboard": False,
    "checkpoint.every_steps": 400,
}


def train(tmp_path: Path, runtime: str, env: Any = "CartPole-v1", steps: int = 1200, **more: Any) -> freewheel.Run:
    settings = {**TINY, "runtime": runtime, "log.folder": str(tmp_path), **more.pop("settings", {})}
    return freewheel.train(env, steps=steps, preset="none", settings=settings, is_quiet=True, **more)


class Broken(gymnasium.Env[Any, Any]):
    """Shows a number that is none after some steps."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    left = 40

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        return np.full(2, np.nan if self.left < 0 else 0.5, np.float32), 1.0, False, False, {}


class Lottery(gymnasium.Env[Any, Any]):
    """The seed of an episode decides its return. Ten steps."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left, self.prize = 10, int(self.np_random.integers(2**24))
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        return np.zeros(2, np.float32), float(self.prize if not self.left else 0), not self.left, False, {}


class Watch(Callback):
    def __init__(self) -> None:
        self.steps: list[int] = []
        self.updates: list[int] = []
        self.paths: list[Path] = []
        self.episodes: list[Episode] = []

    def on_step(self, moment: Moment) -> None:
        self.steps.append(moment.step)

    def on_update(self, moment: Moment) -> None:
        self.updates.append(moment.updates)

    def on_episode(self, moment: Moment, episode: Episode) -> None:
        self.episodes.append(episode)

    def on_checkpoint(self, moment: Moment, path: Path) -> None:
        self.paths.append(path)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_run_is_whole(runtime: str, tmp_path: Path) -> None:
    watch = Watch()
    run = train(tmp_path, runtime, callbacks=[watch])
    result = run.result
    assert result["runtime"] == runtime
    assert 1200 <= result["steps"] < 1200 + TINY["world.lanes"]
    assert result["ratio"] == pytest.approx(TINY["learner.ratio"], rel=0.05)
    assert result["updates"] == pytest.approx((result["steps"] - 100) * 8 / 16, abs=1)
    assert result["eval_return_mean"] >= 8
    assert result["account"]["verdict"].endswith((".", "network."))
    assert watch.steps == sorted(watch.steps)
    assert watch.steps[-1] == result["steps"]
    assert watch.updates[-1] == result["updates"]
    assert [e.ret for e in watch.episodes] == run.returns
    # CartPole gives 1 a step: what the episodes took and what runs still are all the steps there were.
    assert 0 <= result["steps"] - sum(e.length for e in watch.episodes) < 500
    assert all(e.ret == e.length for e in watch.episodes)
    assert {e.lane for e in watch.episodes} == set(range(4))
    with open(run.folder / "episodes.csv") as file:
        assert [float(row["return"]) for row in csv.DictReader(file)] == run.returns
    checkpoint = load_newest(run.folder / "checkpoints")
    assert checkpoint.step == result["steps"]
    assert checkpoint.state["updates"] == result["updates"]
    assert watch.paths[-1] == checkpoint.path
    assert run.policy().act(np.zeros(4, np.float32)) in (0, 1)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_resumed_run_counts_on(runtime: str, tmp_path: Path) -> None:
    first = train(tmp_path, runtime, settings={"checkpoint.replay": True})
    again = freewheel.train(resume=first.folder, steps=2400, is_quiet=True)
    assert again.result["steps"] >= 2400
    assert again.result["updates"] == pytest.approx((again.result["steps"] - 100) * 8 / 16, abs=1)
    assert again.result["seconds"] > first.result["seconds"]
    state = load_newest(again.folder / "checkpoints").state
    assert state["episodes"]["num_finished"] == len(first.returns) + len(again.returns)


@pytest.mark.parametrize("algo", ["dqn", "ppo"])
def test_episodes_are_those_of_their_lanes_and_never_those_of_the_run_before(algo: str, tmp_path: Path) -> None:
    drops = ("replay.rows", "replay.warmup_rows", "learner.batch_size", "learner.ratio") if algo == "ppo" else ()
    settings = {**{k: v for k, v in TINY.items() if k not in drops}, "runtime": "local", "log.folder": str(tmp_path)}
    given: dict[str, Any] = {"algo": algo, "preset": "none", "is_quiet": True}
    runs = [
        freewheel.train(Lottery, steps=400, settings={**settings, "local.actors": actors}, **given) for actors in (1, 2)
    ]
    keys = [lane_key(seed_of(Config("Lottery"), "world.0.0.0"), lane) for lane in range(4)]
    own = {np.random.default_rng(episode_seed(key, i)).integers(2**24) for key in keys for i in range(100)}
    for run in runs:
        assert len(run.returns) > 30
        assert set(run.returns) <= own
    again = freewheel.train(Lottery, resume=runs[0].folder, steps=800, is_quiet=True)
    assert len(again.returns) > 30
    assert not own & set(again.returns)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_without_its_replay_a_resumed_run_warms_up_again(runtime: str, tmp_path: Path) -> None:
    first = train(tmp_path, runtime)
    again = freewheel.train(resume=first.folder, steps=2400, is_quiet=True)
    trained = again.result["steps"] - first.result["steps"] - TINY["replay.warmup_rows"]
    made = again.result["updates"] - first.result["updates"]
    assert made == pytest.approx(trained * 8 / 16, abs=1)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_callback_may_stop_it_and_steer_it(runtime: str, tmp_path: Path) -> None:
    class Steer(Callback):
        def on_update(self, moment: Moment) -> None:
            moment.set_epsilon(0.75)
            if moment.step > 2000:
                self.metrics = moment.metrics()
                moment.stop()

    steer = Steer()
    run = train(tmp_path, runtime, steps=100_000, callbacks=[steer])
    assert 2000 < run.result["steps"] < 100_000
    assert steer.metrics["loss"] >= 0
    assert load_newest(run.folder / "checkpoints").step == run.result["steps"]


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_callback_that_fails_ends_it_with_a_checkpoint(runtime: str, tmp_path: Path) -> None:
    class Fail(Callback):
        def on_step(self, moment: Moment) -> None:
            if moment.step > 300:
                raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        train(tmp_path, runtime, steps=100_000, callbacks=[Fail()])
    (folder,) = tmp_path.iterdir()
    assert load_newest(folder / "checkpoints").step > 300


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_f09_a_number_that_is_none_ends_it(runtime: str, tmp_path: Path) -> None:
    with pytest.raises(EnvError, match="Broken.*NaN"):
        train(tmp_path, runtime, Broken)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_what_cannot_work_is_refused_before_anything_starts(runtime: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="replay.rows"):
        train(tmp_path, runtime, settings={"replay.rows": 4_000_000_000})
    with pytest.raises(ConfigError, match="Discrete action space"):
        train(tmp_path, runtime, "Pendulum-v1")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("runtime", "algo"), [("sequential", "dqn"), ("local", "dqn"), ("sequential", "ppo")])
def test_the_time_of_a_choice_of_actions_is_in_the_log(runtime: str, algo: str, tmp_path: Path) -> None:
    settings = {"runtime": runtime, "log.folder": str(tmp_path), "log.tensorboard": False, "log.every_s": 0.0}
    run = freewheel.train("CartPole-v1", algo=algo, steps=2_100, settings={**settings, "eval_episodes": 0})
    lines = list(csv.DictReader((run.folder / "metrics.csv").read_text().splitlines()))
    told = [float(line["time/infer_ms"]) for line in lines if line["time/infer_ms"]]
    assert told
    assert min(told) > 0
