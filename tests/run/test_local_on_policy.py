"""On-policy algorithms as processes: rows of a bounded age, none lost in silence; stopped, killed and resumed."""

from __future__ import annotations

import csv
import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

import freewheel
from freewheel import Callback, Moment
from freewheel.config import assemble
from freewheel.errors import ConfigError, EnvError
from freewheel.run.checkpoint import load_newest
from freewheel.run.layout import choose
from freewheel.run.policy import load_policy

LANES, ROWS, EPOCHS, MINIBATCHES = 4, 16, 2, 2
SMALL: dict[str, Any] = {
    "runtime": "local",
    "world.lanes": LANES,
    "world.kind": "inline",
    "rollout.rows": ROWS,
    "net.hidden": (8,),
    "ppo.minibatches": MINIBATCHES,
    "ppo.epochs": EPOCHS,
    "eval_episodes": 0,
    "log.tensorboard": False,
    "log.every_s": 0.0,
    "checkpoint.every_steps": 0,
}
A_ROLLOUT = LANES * ROWS


def train(folder: Path, algo: str, env: Any = "CartPole-v1", steps: int = 1500, **more: Any) -> freewheel.Run:
    settings = {**SMALL, "log.folder": str(folder), **more.pop("settings", {})}
    return freewheel.train(env, algo=algo, steps=steps, preset="none", settings=settings, is_quiet=True, **more)


def logged(run: freewheel.Run, name: str) -> list[float]:
    with open(run.folder / "metrics.csv") as file:
        return [float(row[name]) for row in csv.DictReader(file) if row.get(name)]


class At(Callback):
    """Does something once, when so many updates were made."""

    def __init__(self, updates: int, act: Any) -> None:
        self.updates, self.act, self.is_done = updates, act, False

    def on_update(self, moment: Moment) -> None:
        if moment.updates >= self.updates and not self.is_done:
            self.is_done = True
            self.act(moment)


def kill(role: str) -> Any:
    def act(moment: Moment) -> None:
        supervisor = moment._runtime._supervisor  # type: ignore[union-attr]
        os.kill((supervisor.learner if role == "learner" else supervisor.actors[0]).pid, signal.SIGKILL)

    return act


@pytest.mark.parametrize(
    ("algo", "actors", "max_lag"), [("ppo", 1, 0), ("ppo", 2, 1), ("appo", 1, 0), ("appo", 1, 1), ("appo", 2, 3)]
)
def test_every_rollout_is_learned_from_and_no_row_is_older_than_it_may_be(
    tmp_path: Path, algo: str, actors: int, max_lag: int
) -> None:
    run = train(tmp_path, algo, settings={"local.actors": actors, "rollout.max_lag": max_lag})
    assert run.result["runtime"] == "local"
    assert 1500 <= run.result["steps"] < 1500 + 2 * LANES
    saved = load_newest(run.folder / "checkpoints").state
    rollout = saved["rollout"]
    assert rollout["overwritten"] == 0
    assert rollout["lost"] == 0
    # Rows that are older than they may be would be left out as stale. One actor always stops in time; of two, one may sleep
    # on a busy machine while the other goes on.
    assert actors > 1 or rollout["stale"] == 0
    assert saved["version"] == (run.result["steps"] - rollout["stale"]) // A_ROLLOUT
    assert run.result["updates"] == saved["version"] * EPOCHS * MINIBATCHES
    assert all(lag <= max_lag for lag in logged(run, "learner/lag"))
    assert run.result["account"]["roles"]["learner"]["kind"] == "learner"
    assert len(run.episodes) > 10


@pytest.mark.parametrize(("algo", "actors", "reuse"), [("ppo", 1, 0), ("appo", 2, 0), ("appo", 1, 2)])
def test_whole_episodes_are_learned_from_while_others_run(tmp_path: Path, algo: str, actors: int, reuse: int) -> None:
    settings: dict[str, Any] = {"rollout.collect": "episodes", "local.actors": actors}
    run = train(tmp_path, algo, settings=settings | ({"rollout.reuse": reuse} if reuse else {}))
    rollout = load_newest(run.folder / "checkpoints").state["rollout"]
    assert (rollout["overwritten"], rollout["stale"], rollout["lost"]) == (0, 0, 0)
    least = (
        EPOCHS * MINIBATCHES * (run.result["steps"] // A_ROLLOUT - 8)
    )  # what is in hand at the end is not learned from
    assert run.result["updates"] >= least * (1 + reuse / 2)


def test_statistics_of_observations_reach_the_actors_and_the_saved_policy(tmp_path: Path) -> None:
    settings = {"ppo.normalize_obs": True, "ppo.normalize_reward": True, "world.max_episode_steps": 30}
    run = train(tmp_path, "appo", "Pendulum-v1", steps=600, settings=settings)
    norm = load_policy(run.folder).infer.net.norm  # type: ignore[attr-defined]
    saved = load_newest(run.folder / "checkpoints").tensors
    np.testing.assert_allclose(norm.mean, saved["stats.obs.mean"], rtol=1e-6)
    assert saved["stats.obs.count"] == 600 // A_ROLLOUT * A_ROLLOUT


@pytest.mark.parametrize("algo", ["ppo", "appo"])
def test_a_run_that_was_stopped_goes_on(tmp_path: Path, algo: str) -> None:
    part = train(tmp_path, algo, steps=100_000, callbacks=[At(20, lambda moment: moment.stop())])
    assert part.result["steps"] < 100_000
    before = load_newest(part.folder / "checkpoints").state
    steps = before["steps"] + 640
    run = freewheel.train(resume=part.folder, steps=steps, is_quiet=True)
    after = load_newest(run.folder / "checkpoints").state
    assert after["steps"] >= steps
    assert before["version"] + 8 <= after["version"] <= before["version"] + 11
    assert after["updates"] - before["updates"] == (after["version"] - before["version"]) * EPOCHS * MINIBATCHES


@pytest.mark.parametrize("algo", ["ppo", "appo"])
def test_f01_an_actor_that_is_killed_is_replaced_and_the_rest_goes_on(
    tmp_path: Path, algo: str, capfd: pytest.CaptureFixture[str]
) -> None:
    run = freewheel.train(
        "CartPole-v1",
        algo=algo,
        steps=4000,
        preset="none",
        settings={**SMALL, "log.folder": str(tmp_path), "local.actors": 2},
        callbacks=[At(20, kill("actor"))],
    )
    assert "actor-0 ended (killed by SIGKILL); it is started again" in capfd.readouterr().err
    assert run.result["steps"] >= 4000
    saved = load_newest(run.folder / "checkpoints").state
    assert saved["rollout"]["overwritten"] == 0
    # The dead one had at most the outcomes of one turn in hand, and rows that had no outcome yet.
    assert saved["rollout"]["lost"] <= LANES
    assert saved["version"] >= (4000 - saved["rollout"]["stale"] - 2 * LANES) // A_ROLLOUT - 1


def test_f02_a_learner_that_is_killed_goes_on_from_its_checkpoint(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = freewheel.train(
        "CartPole-v1",
        algo="appo",
        steps=4000,
        preset="none",
        settings={**SMALL, "log.folder": str(tmp_path), "checkpoint.every_steps": 500},
        callbacks=[At(60, kill("learner"))],
    )
    said = capfd.readouterr().err
    assert "learner ended (killed by SIGKILL); it is started again" in said
    assert "the learner goes on from step-" in said
    assert run.result["steps"] >= 4000
    assert load_newest(run.folder / "checkpoints").state["rollout"]["overwritten"] == 0


def test_a_pool_of_envs_is_served_by_one_actor(tmp_path: Path) -> None:
    run = train(tmp_path, "appo", steps=600, settings={"world.kind": "pool", "world.workers": 2, "world.min_ready": 1})
    assert run.result["updates"] > 0
    assert load_newest(run.folder / "checkpoints").state["rollout"]["overwritten"] == 0


class DiesOnce(CartPoleEnv):
    """Takes its worker with it at its 20th step, if nobody has done so before."""

    def __init__(self, mark: str) -> None:
        super().__init__()
        self.mark, self.taken = Path(mark), 0

    def step(self, action: Any) -> Any:
        self.taken += 1
        if self.taken == 20 and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


@pytest.mark.parametrize("runtime", ["local", "sequential"])
def test_a_worker_of_a_pool_that_dies_is_told_of_and_its_episodes_are_counted(
    tmp_path: Path, runtime: str, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = {"runtime": runtime, "world.kind": "pool", "world.workers": 2, "world.threads": 1}
    settings |= {"world.kwargs": json.dumps({"mark": str(tmp_path / "died")})}
    run = train(tmp_path, "ppo", DiesOnce, settings=settings)
    assert run.result["steps"] >= 1500
    assert "worker" in capfd.readouterr().err
    assert 1 <= max(logged(run, "train/cut_episodes")) <= LANES


def test_the_published_weights_are_evaluated_and_saved(tmp_path: Path) -> None:
    run = train(tmp_path, "appo", steps=300, settings={"eval_episodes": 2})
    assert run.result["eval_return_mean"] > 0
    assert run.policy().act(np.zeros(4, np.float32)) in (0, 1)


def broken() -> Any:
    raise RuntimeError("no such env today")


def test_what_goes_wrong_is_raised(tmp_path: Path) -> None:
    with pytest.raises((EnvError, ConfigError, RuntimeError), match="no such env today"):
        train(tmp_path, "appo", broken)

    class Steer(Callback):
        def on_step(self, moment: Moment) -> None:
            moment.set_epsilon(0.1)

    with pytest.raises(ConfigError, match="no epsilon"):
        train(tmp_path, "appo", callbacks=[Steer()])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"local.free": True}, r"local\.free.*rollout\.max_lag"),
        ({"local.publish_every_updates": 3}, "after each rollout"),
        ({"learner.workers": 2}, "one process"),
        ({"ppo.rho_bar": 0.0}, "above 0"),
    ],
)
def test_what_has_no_effect_is_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train(tmp_path, "appo", settings=settings)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("algo", "cores", "runtime"), [("ppo", 8, "sequential"), ("appo", 8, "local"), ("appo", 1, "sequential")]
)
def test_the_runtime_that_is_chosen(algo: str, cores: int, runtime: str) -> None:
    layout = choose(assemble("CartPole-v1", {"algo": algo}), cores)
    assert layout.runtime == runtime
    assert layout.reason


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", "LunarLander-v3"])
def test_appo_takes_the_presets_of_ppo(env: str) -> None:
    one, two = assemble(env, {"algo": "ppo"}), assemble(env, {"algo": "appo"})
    assert (one.ppo, one.net, one.learner, one.rollout.rows) == (two.ppo, two.net, two.learner, two.rollout.rows)
    assert two.rollout.max_lag == 1


def test_appo_in_turn_learns_to_balance(tmp_path: Path) -> None:
    settings = {"runtime": "sequential", "eval_episodes": 0, "log.tensorboard": False, "log.folder": str(tmp_path)}
    run = freewheel.train("CartPole-v1", algo="appo", steps=16_000, settings=settings, is_quiet=True)
    assert np.mean(run.returns[:20]) < 40
    assert run.result["return_mean"] > 80
