"""Runs from rollouts: lanes that are not in step, rows of a bounded age, statistics, drawn actions, whole episodes, pictures."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from run_cases import (
    A_ROLLOUT,
    LANES,
    RUNTIMES,
    UPDATES_A_ROLLOUT,
    At,
    StopAt,
    Watch,
    kill,
    logged,
    resume,
    saved,
    train,
)

import freewheel
from freewheel.cli import eval as cli_eval
from freewheel.store.checkpoint import load_newest

every_run = pytest.mark.parametrize("runtime", RUNTIMES)
PENDULUM = {"ppo.normalize_obs": True, "world.max_episode_steps": 30}


def counted(run: freewheel.Run) -> tuple[int, int, int]:
    """Rows that could not be learned from."""
    rollout = saved(run)["rollout"]
    return rollout["lost"], rollout["stale"], rollout["overwritten"]


def test_lanes_that_cannot_be_brought_back_begin_anew_and_are_counted(tmp_path: Path) -> None:
    part = train(tmp_path, "ppo", settings={"world.kind": "vector"}, callbacks=[StopAt(250)], steps=560)
    resumed = resume(part)
    assert resumed.result["steps"] >= 560
    state = saved(resumed)
    assert state["rollout"]["lost"] <= LANES
    assert state["version"] == 560 // A_ROLLOUT


@pytest.mark.parametrize("kind", ["NEXT_STEP", "SAME_STEP", "DISABLED"])
def test_vector_envs_whose_lanes_are_not_in_step(tmp_path: Path, kind: str) -> None:
    mode = getattr(gymnasium.vector.AutoresetMode, kind)
    env = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * LANES, autoreset_mode=mode)
    try:
        run = train(tmp_path, "ppo", env=env, steps=500)
    finally:
        env.close()
    assert counted(run) == (0, 0, 0)
    assert run.result["updates"] == run.result["steps"] // A_ROLLOUT * UPDATES_A_ROLLOUT


@pytest.mark.parametrize(
    ("algo", "actors", "max_lag"), [("ppo", 1, 0), ("ppo", 2, 1), ("appo", 1, 0), ("appo", 1, 1), ("appo", 2, 3)]
)
def test_no_row_is_older_than_it_may_be(tmp_path: Path, algo: str, actors: int, max_lag: int) -> None:
    settings = {"local.actors": actors, "rollout.max_lag": max_lag, "log.every_s": 0.0, "world.kind": "inline"}
    run = train(tmp_path, algo, "local", steps=1500, settings=settings)
    assert 1500 <= run.result["steps"] < 1500 + 2 * LANES
    lost, stale, overwritten = counted(run)
    assert (lost, overwritten) == (0, 0)
    # Rows that are older than they may be would be left out as stale. One actor always stops in time; of two, one may sleep
    # on a busy machine while the other goes on.
    assert actors > 1 or stale == 0
    version = saved(run)["version"]
    assert version == (run.result["steps"] - stale) // A_ROLLOUT
    assert run.result["updates"] == version * UPDATES_A_ROLLOUT
    lags = logged(run, "learner/lag")
    assert lags
    assert all(lag <= max_lag for lag in lags)


@pytest.mark.parametrize(("algo", "actors", "reuse"), [("ppo", 1, 0), ("appo", 2, 0), ("appo", 1, 2)])
def test_whole_episodes_are_learned_from_while_others_run(tmp_path: Path, algo: str, actors: int, reuse: int) -> None:
    settings: dict[str, Any] = {"rollout.collect": "episodes", "local.actors": actors}
    settings |= {"rollout.reuse": reuse} if reuse else {}
    run = train(tmp_path, algo, "local", steps=1500, settings=settings)
    assert counted(run) == (0, 0, 0)
    # What is in hand at the end is not learned from.
    least = UPDATES_A_ROLLOUT * (run.result["steps"] // A_ROLLOUT - 8)
    assert run.result["updates"] >= least * (1 + reuse / 2)


@pytest.mark.parametrize(("runtime", "algo"), [("sequential", "ppo"), ("local", "appo")])
def test_statistics_reach_the_actors_and_the_saved_policy(runtime: str, algo: str, tmp_path: Path) -> None:
    settings = {**PENDULUM, "ppo.normalize_reward": True}
    run = train(tmp_path, algo, runtime, "Pendulum-v1", steps=600, settings=settings)
    policy = run.policy()
    norm: Any = policy.trained.net.norm
    tensors = load_newest(run.folder / "checkpoints").tensors
    assert tensors["stats.obs.count"] == 600 // A_ROLLOUT * A_ROLLOUT
    np.testing.assert_allclose(norm.mean, tensors["stats.obs.mean"], rtol=1e-6)
    assert not np.allclose(norm.var, 1)
    action = policy.act(np.array([1.0, 0.0, 0.5], np.float32))
    assert action.shape == (1,)
    assert policy.action_space.contains(action)
    assert policy.act(np.zeros((5, 3), np.float32)).shape == (5, 1)


def evaluated(run: freewheel.Run, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    cli_eval.main([str(run.folder), "--episodes", "4", "--json", "--quiet", *words])
    told: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return told


def test_eval_plays_drawn_actions_where_that_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As in training: an untrained policy takes either action, where the likeliest is the same all the time."""
    run = train(tmp_path, "ppo", steps=500, settings={"eval_episodes": 4, "eval_sampled": True})
    by_run, drawn = evaluated(run, capsys), evaluated(run, capsys, "--actions", "sampled")
    assert by_run["return_mean"] == drawn["return_mean"] == run.result["eval_return_mean"]
    greedy = evaluated(run, capsys, "--actions", "greedy")
    assert (greedy["sampled"], by_run["sampled"]) == (False, True)
    assert greedy["return_mean"] != run.result["eval_return_mean"]


@every_run
def test_eval_plays_the_likeliest_actions(runtime: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = train(tmp_path, "appo", runtime, steps=300, settings={"eval_episodes": 4})
    assert run.result["eval_return_mean"] > 0
    assert evaluated(run, capsys)["return_mean"] == run.result["eval_return_mean"]


def test_callbacks_see_each_rollout(tmp_path: Path) -> None:
    watch = Watch()
    run = train(tmp_path, "ppo", callbacks=[watch], steps=500)
    assert watch.updates == [UPDATES_A_ROLLOUT * i for i in range(1, 500 // A_ROLLOUT + 1)]
    assert watch.metrics["policy_lag"] == 0
    assert watch.metrics["approx_kl"] >= 0
    assert run.account is not None
    assert run.account.warnings == ()


@pytest.mark.parametrize("algo", ["ppo", "appo"])
def test_f01_an_actor_that_is_killed_is_replaced_and_the_rest_goes_on(
    tmp_path: Path, algo: str, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = {"local.actors": 2, "world.kind": "inline"}
    run = train(tmp_path, algo, "local", steps=4000, settings=settings, callbacks=[At(20, kill("actor-0"))])
    said = capfd.readouterr().err
    assert re.search(r"actor-0 \(pid \d+\) died by SIGKILL at step [\d,]+; restart 1 of 3\.", said)
    assert run.result["steps"] >= 4000
    lost, stale, overwritten = counted(run)
    assert overwritten == 0
    # The dead one had at most the outcomes of one turn in hand, and rows that had no outcome yet.
    assert lost <= LANES
    assert saved(run)["version"] >= (4000 - stale - 2 * LANES) // A_ROLLOUT - 1


def test_f02_a_learner_that_is_killed_goes_on_from_its_checkpoint(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = {"checkpoint.every_steps": 500, "world.kind": "inline"}
    run = train(tmp_path, "appo", "local", steps=4000, settings=settings, callbacks=[At(60, kill("learner"))])
    said = capfd.readouterr().err
    assert "learner (pid " in said
    assert "learner continues from step-" in said
    assert run.result["steps"] >= 4000
    assert counted(run)[2] == 0


def test_a_pool_of_envs_is_served_by_one_actor(tmp_path: Path) -> None:
    settings = {"world.kind": "pool", "world.workers": 2, "world.min_ready": 1}
    run = train(tmp_path, "appo", "local", steps=600, settings=settings)
    assert run.result["updates"] > 0
    assert counted(run)[2] == 0


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
        if self.mark.exists():
            time.sleep(
                0.001
            )  # so that the other worker alone does not end the run before the pool looks for dead workers
        return super().step(action)


@every_run
def test_a_worker_of_a_pool_that_dies_is_told_of_and_its_episodes_are_counted(
    tmp_path: Path, runtime: str, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = {"world.kind": "pool", "world.workers": 2, "world.threads": 1, "log.every_s": 0.0}
    settings |= {"world.kwargs": json.dumps({"mark": str(tmp_path / "died")})}
    run = train(tmp_path, "ppo", runtime, DiesOnce, steps=1500, settings=settings)
    assert run.result["steps"] >= 1500
    assert "worker" in capfd.readouterr().err
    assert 1 <= max(logged(run, "train/cut_episodes")) <= LANES


class Pictures(gymnasium.Env[Any, Any]):
    """Random pixels; cut after 9 steps."""

    observation_space = gymnasium.spaces.Box(0, 255, (36, 36, 1), np.uint8)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.at = 0
        return self._see(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.at += 1
        return self._see(), 1.0, False, self.at == 9, {}

    def _see(self) -> Any:
        return self.np_random.integers(0, 255, (36, 36, 1)).astype(np.uint8)


@every_run
def test_pictures_and_stacks_of_them(runtime: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"net.channels": (4, 4), "net.kernels": (8, 4), "net.strides": (4, 2)}
    settings |= {"world.stack": 2, "eval_episodes": 2}
    run = train(tmp_path, "ppo", runtime, Pictures, 130, settings=settings)
    assert run.result["eval_return_mean"] == 9.0
    assert run.policy().act(np.zeros((36, 36, 1), np.uint8)) in (0, 1, 2)


def test_appo_in_one_process_learns_to_balance(tmp_path: Path) -> None:
    settings = {"runtime": "sequential", "eval_episodes": 0, "log.tensorboard": False, "log.folder": str(tmp_path)}
    run = freewheel.train("CartPole-v1", algo="appo", steps=16_000, settings=settings, is_quiet=True)
    assert np.mean(run.returns[:20]) < 40
    assert run.result["return_mean"] > 80
