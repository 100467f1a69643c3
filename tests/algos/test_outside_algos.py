"""Algorithms from outside, by module:name: they train, resume and are loaded without a change of the package."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from outside_algos import n_step_goals

import freewheel
from freewheel.config import assemble
from freewheel.errors import ConfigError

ALGOS = ["outside_algos:Sarsa", "outside_algos:Reinforce"]


def train(folder: Path, algo: str, steps: int, **settings: Any) -> freewheel.Run:
    given = {"log.folder": str(folder), "log.tensorboard": False, "eval_episodes": 10, **settings}
    return freewheel.train("CartPole-v1", algo=algo, steps=steps, settings=given, preset="none", is_quiet=True)


@pytest.mark.parametrize("runtime", ["sequential", "local"])
@pytest.mark.parametrize("algo", ALGOS)
def test_an_algorithm_from_outside_trains(tmp_path: Path, algo: str, runtime: str) -> None:
    run = train(tmp_path, algo, 6_000, runtime=runtime)
    assert run.result["updates"] >= 8
    assert run.result["steps"] >= 6_000
    assert run.policy().act(np.zeros(4, np.float32)) in (0, 1)
    assert freewheel.load(run.folder).config.algo == algo


@pytest.mark.parametrize("algo", ALGOS)
def test_it_resumes_bit_for_bit(tmp_path: Path, algo: str) -> None:
    settings = {"runtime": "sequential", "eval_episodes": 0}
    whole = train(tmp_path, algo, 3_000, **settings)
    first = train(tmp_path, algo, 1_500, **settings)
    rest = freewheel.train(
        resume=first.folder, steps=3_000, settings={"eval_episodes": 0, "log.tensorboard": False}, is_quiet=True
    )
    obs = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    outputs = [run.policy().trained.net(_tensor(obs)).detach().numpy() for run in (whole, rest)]
    assert np.array_equal(*outputs)
    assert [episode.ret for episode in first.episodes + rest.episodes] == whole.returns


def test_sarsa_learns(tmp_path: Path) -> None:
    run = train(tmp_path, "outside_algos:Sarsa", 20_000, runtime="sequential", **{"explore.over_steps": 8_000})
    assert np.mean(run.returns[-20:]) > 2 * np.mean(run.returns[:20])


def test_its_settings_are_checked() -> None:
    assert assemble("CartPole-v1", {"algo": ALGOS[0], "sarsa.n_step": 3}, "none").sarsa.n_step == 3  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"sarsa\.n_step=0 must be between 1 and 1000"):
        assemble("CartPole-v1", {"algo": ALGOS[0], "sarsa.n_step": 0}, "none")
    with pytest.raises(ConfigError, match=r"has no setting 'sarsa\.n_steps'.*Did you mean sarsa\.n_step"):
        assemble("CartPole-v1", {"algo": ALGOS[0], "sarsa.n_steps": 3}, "none")
    with pytest.raises(ConfigError, match=r"has no setting 'q\.double'"):
        assemble("CartPole-v1", {"algo": ALGOS[0], "q.double": True}, "none")


@pytest.mark.parametrize("algo", ["outside_algos:Told", "outside_algos:Nothing", "no_such_module:Algo"])
def test_what_is_no_algorithm_is_refused(algo: str) -> None:
    with pytest.raises(ConfigError):
        assemble("CartPole-v1", {"algo": algo}, "none")


def test_n_step_goals_of_a_lane_solved_by_hand() -> None:
    """Rewards 1, 2, 4, 8 with gamma 0.5; the episode terminates with the third."""
    rows = SimpleNamespace(
        reward=np.array([[1.0, 2.0, 4.0, 8.0]], np.float32),
        next_value=np.array([[10.0, 20.0, 30.0, 40.0]], np.float32),
        terminated=np.array([[False, False, True, False]]),
        goes_on=np.array([[True, True, False, False]]),
    )
    one, two = n_step_goals(rows, 0.5, 1), n_step_goals(rows, 0.5, 2)
    assert one.tolist() == [[6.0, 12.0, 4.0, 28.0]]
    assert two.tolist() == [[1 + 0.5 * 12.0, 2 + 0.5 * 4.0, 4.0, 28.0]]


def _tensor(obs: Any) -> Any:
    import torch

    return torch.from_numpy(obs)
