"""`freewheel eval`: a trained agent plays greedy episodes, the same ones for the same seed; what cannot be is said."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import freewheel
from freewheel.cli import eval as command
from freewheel.cli.main import main
from freewheel.errors import ConfigError

KEYS = [
    "run",
    "env",
    "algo",
    "checkpoint",
    "step",
    "sampled",
    "episodes",
    "cut",
    "return_mean",
    "return_std",
    "return_min",
    "return_max",
]


class Chain(gymnasium.Env[Any, Any]):
    """Ten steps to the end; a reward of 1 for each."""

    observation_space = spaces.Box(-1, 1, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.left = 10
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        self.left -= 1
        return np.zeros(3, np.float32), 1.0, self.left == 0, False, {}


class Wider(Chain):
    observation_space = spaces.Box(-5, 5, (3,), np.float32)


class Freer(Chain):
    action_space = spaces.Discrete(3)


def train(root: Path, env: Any = "CartPole-v1", **settings: Any) -> Path:
    given = {
        "runtime": "sequential",
        "replay.warmup_rows": 128,
        "eval_episodes": 0,
        "log.folder": str(root),
        "log.tensorboard": False,
    }
    return freewheel.train(env, steps=300, settings={**given, **settings}, is_quiet=True).folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("runs"), **{"checkpoint.every_steps": 100})


Figures = Callable[..., dict[str, Any]]


@pytest.fixture
def figures(capsys: pytest.CaptureFixture[str]) -> Figures:
    def of(*words: Any) -> dict[str, Any]:
        command.main([*map(str, words), "--json", "--quiet"])
        result: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
        return result

    return of


def test_figures(run: Path, figures: Figures) -> None:
    result = figures(run.name, "--root", run.parent, "--episodes", 30)
    assert [*KEYS, "return_median", "length_mean", "seconds"] == list(result)
    assert (result["run"], result["env"], result["algo"]) == (str(run), "CartPole-v1", "dqn")
    assert (result["episodes"], result["step"]) == (30, 304)
    assert result["checkpoint"] == str(run / "checkpoints" / "step-000000304")
    assert 1 <= result["return_min"] <= result["return_median"] <= result["return_max"] <= 500
    assert result["return_min"] <= result["return_mean"] <= result["return_max"]
    assert result["length_mean"] == result["return_mean"]  # CartPole pays 1 for each step


def test_values_have_no_actions_to_draw(run: Path, figures: Figures) -> None:
    with pytest.raises(ConfigError, match="algo=dqn learns values, so there is no policy to sample"):
        figures(run, "--actions", "sampled")


def test_the_seed_decides(run: Path, figures: Figures) -> None:
    def returns(*words: Any) -> list[Any]:
        result = figures(run, "--episodes", 40, *words)
        return [result[key] for key in KEYS if key.startswith("return")]

    assert returns() == returns()
    assert returns("--seed", 5) == returns("--seed", 5)
    assert returns("--seed", 5) != returns("--seed", 6)


def test_it_repeats_the_evaluation_after_training(tmp_path: Path, figures: Figures) -> None:
    run = train(tmp_path, eval_episodes=20)
    told = json.loads((run / "result.json").read_text())["eval_return_mean"]
    assert figures(run, "--episodes", 20)["return_mean"] == pytest.approx(told, abs=1e-9)


def test_a_checkpoint_by_its_folder(run: Path, tmp_path: Path, figures: Figures) -> None:
    older, newest = sorted((run / "checkpoints").iterdir())[-2:]
    assert figures(older, "--episodes", 2)["step"] < figures(newest, "--episodes", 2)["step"] == 304
    alone = tmp_path / older.name
    shutil.copytree(older, alone)
    assert figures(alone, "--episodes", 2)["run"] == str(alone)


def test_the_table(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(run), "--episodes", "20"]) == 0
    shown = capsys.readouterr()
    labels = [line.split()[0] for line in shown.out.splitlines()]
    assert labels == ["run", "agent", "return", "length", "episodes"]
    assert "dqn at step 304 in CartPole-v1, greedy" in shown.out
    assert "20 in" in shown.out
    assert "20/20" in shown.err


def test_a_damaged_checkpoint_is_named(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / run.name
    shutil.copytree(run, copy)
    newest = max((copy / "checkpoints").iterdir())
    (newest / "tensors.safetensors").write_bytes(b"damaged")
    assert main(["eval", str(copy), "--episodes", "2", "--json", "--quiet"]) == 0
    shown = capsys.readouterr()
    assert f"warning: checkpoint {newest}" in shown.err
    assert json.loads(shown.out)["step"] < 304
    for path in (copy / "checkpoints").iterdir():
        (path / "tensors.safetensors").write_bytes(b"damaged")
    assert main(["eval", str(copy)]) == 1
    assert "has no complete checkpoint" in capsys.readouterr().err


def test_another_env_and_other_arguments(run: Path, figures: Figures) -> None:
    result = figures(run, "--env", "CartPole-v0", "--episodes", 2)
    assert result["env"] == "CartPole-v0"
    gentle = figures(run, "--kwargs", '{"sutton_barto_reward": true}', "--episodes", 4)
    assert gentle["return_max"] == -1.0
    with pytest.raises(ConfigError, match=r"Acrobot-v1 has the observations Box.*\(6,\).*was trained on Box.*\(4,\)"):
        figures(run, "--env", "Acrobot-v1")
    with pytest.raises(ConfigError, match="there is no env 'CartPol-v1'. Did you mean CartPole-v1"):
        figures(run, "--env", "CartPol-v1")
    with pytest.raises(ConfigError, match="is not JSON"):
        figures(run, "--kwargs", "{")


def test_a_run_whose_env_was_given_in_python(tmp_path: Path, figures: Figures) -> None:
    run = train(tmp_path, Chain)
    with pytest.raises(ConfigError, match="trained on 'Chain', which is not the id .* --env module:function"):
        figures(run)
    result = figures(run, "--env", f"{__name__}:Chain", "--episodes", 3)
    assert (result["return_min"], result["return_max"], result["length_mean"]) == (10.0, 10.0, 10.0)
    assert figures(run, "--env", f"{__name__}:Wider", "--episodes", 1)["return_mean"] == 10.0
    with pytest.raises(ConfigError, match=r"Freer has the actions Discrete\(3\), .* was trained on Discrete\(2\)"):
        figures(run, "--env", f"{__name__}:Freer")


def test_bad_input(run: Path, tmp_path: Path, figures: Figures) -> None:
    with pytest.raises(ConfigError, match="--episodes 0 must be at least 1"):
        figures(run, "--episodes", 0)
    with pytest.raises(ConfigError, match=rf"there is no run '{run.name}x' .* Did you mean {run.name}\?"):
        figures(f"{run.name}x", "--root", run.parent)
    with pytest.raises(ConfigError, match="is not a run"):
        figures(tmp_path)
