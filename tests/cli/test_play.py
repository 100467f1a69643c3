"""`freewheel play`: films what the agent does, puts the file where it was asked to, and says what cannot be filmed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from PIL import Image

import freewheel
from freewheel.cli import eval as eval_command
from freewheel.cli import play as command
from freewheel.cli.main import main
from freewheel.errors import ConfigError, EnvError
from freewheel.store.load import Policy


class Drawn(gymnasium.Env[Any, Any]):
    """Endless; its picture gets brighter with each step."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012
    observation_space = spaces.Box(-1, 1, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None, fault: str = "", limit: int = 10**9) -> None:
        self.render_mode, self.fault, self.limit = render_mode, fault, limit

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.steps = 0
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.fault == "step" and self.steps == 5:
            raise RuntimeError("the wheel came off")
        return np.zeros(3, np.float32), 0.5, self.steps >= self.limit, False, {}

    def render(self) -> Any:
        return None if self.fault == "render" else np.full((30, 50, 3), 10 * self.steps % 256, np.uint8)


class Words(Drawn):
    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012


class Undrawn(Drawn):
    metadata = {"render_modes": []}  # noqa: RUF012

    def render(self) -> Any:
        raise NotImplementedError


def undrawn() -> Any:
    return Drawn()


NAME = f"{__name__}:Drawn"


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
    return train(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("runs"), NAME, **{"world.max_episode_steps": 40, "world.stack": 2})


Figures = Callable[..., dict[str, Any]]


@pytest.fixture
def figures(capsys: pytest.CaptureFixture[str]) -> Figures:
    def of(*words: Any) -> dict[str, Any]:
        command.main([*map(str, words), "--json", "--quiet"])
        result: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
        return result

    return of


def read_gif(path: Path) -> tuple[list[np.ndarray[Any, Any]], list[int]]:
    frames, durations = [], []
    with Image.open(path) as image:
        for i in range(image.n_frames):
            image.seek(i)
            frames.append(np.asarray(image.convert("RGB")))
            durations.append(image.info["duration"])
    return frames, durations


def test_cartpole_as_gif(run: Path, figures: Figures) -> None:
    result = figures(run.name, "--root", run.parent)
    assert result["file"] == str(run / "play.gif")
    assert (result["run"], result["env"], result["algo"], result["step"]) == (str(run), "CartPole-v1", "dqn", 304)
    frames, durations = read_gif(run / "play.gif")
    (length,) = result["lengths"]
    assert result["returns"] == [length]
    assert result["frames"] == length + 1
    assert frames[0].shape == (267, 400, 3)
    assert sum(durations) == 20 * length + 1000
    cart = [int(np.flatnonzero((image < 60).all(axis=2).sum(axis=0) > 5).mean()) for image in frames]
    assert abs(cart[0] - 200) < 10  # it starts in the middle
    assert len(set(cart)) > 2  # and moves
    assert result["bytes"] == (run / "play.gif").stat().st_size
    assert [name for name in os.listdir(run) if name.startswith(".tmp")] == []


def test_it_shows_the_episodes_of_an_evaluation(
    run: Path, figures: Figures, capsys: pytest.CaptureFixture[str]
) -> None:
    result = figures(run, "--seed", 7, "--episodes", 2, "--out", run / "two.gif")
    assert len(result["lengths"]) == result["episodes"] == 2
    eval_command.main([str(run), "--seed", "7", "--episodes", "1", "--json", "--quiet"])
    assert json.loads(capsys.readouterr().out)["return_mean"] == result["returns"][0]


def test_cartpole_as_mp4(run: Path, figures: Figures, tmp_path: Path) -> None:
    result = figures(run, "--out", tmp_path / "film.mp4", "--fps", 12.5)
    assert result["fps"] == 12.5
    assert result["frames"] == result["lengths"][0] + 1
    data = (tmp_path / "film.mp4").read_bytes()
    assert data[4:8] == b"ftyp"
    assert len(data) == result["bytes"]


def test_episodes_are_cut(drawn: Path, figures: Figures, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "film.gif"
    result = figures(drawn, "--max-steps", 7, "--episodes", 2, "--out", out)
    assert (result["lengths"], result["returns"], result["fps"]) == ([7, 7], [3.5, 3.5], 20)
    frames, durations = read_gif(out)
    assert np.array([image.mean() for image in frames]) == pytest.approx(
        [10 * i for i in [*range(8), *range(8)]], abs=4
    )
    assert durations == [50] * 15 + [1000]
    assert main(["play", str(drawn), "--out", str(out), "--max-steps", "7"]) == 0
    shown = capsys.readouterr()
    assert "episode 1   return 3.5, length 7, cut by --max-steps" in shown.out
    assert shown.out.splitlines()[-1].split() == ["file", str(out)]
    command.main([str(drawn), "--out", str(out)])
    assert "length 40\n" in capsys.readouterr().out  # the run's own limit


def test_each_episode_begins_afresh(
    drawn: Path, figures: Figures, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run stacks observations: those of an episode may not reach into the next one."""
    seen: list[Any] = []
    reset, act = Policy.reset, Policy.act
    monkeypatch.setattr(Policy, "reset", lambda self: (seen.append("reset"), reset(self))[1])
    monkeypatch.setattr(Policy, "act", lambda self, obs: (seen.append("act"), act(self, obs))[1])
    figures(drawn, "--episodes", 2, "--max-steps", 3, "--out", tmp_path / "film.gif")
    assert seen == ["reset", "act", "act", "act"] * 2


def test_a_checkpoint_that_lies_elsewhere(
    run: Path, figures: Figures, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (checkpoint,) = (run / "checkpoints").iterdir()
    assert figures(checkpoint)["file"] == str(run / "play.gif")
    shutil.copytree(checkpoint, tmp_path / checkpoint.name)
    monkeypatch.chdir(tmp_path)
    assert figures(tmp_path / checkpoint.name)["file"] == str(tmp_path / "play.gif")


@pytest.mark.parametrize("env", ["undrawn", "Undrawn", "Words", "Undrawn-v0", "Words-v0", "Bare-v0"])
def test_an_env_that_draws_nothing(drawn: Path, figures: Figures, tmp_path: Path, env: str) -> None:
    made = {"Undrawn-v0": Undrawn, "Words-v0": Words, "Bare-v0": undrawn}
    for env_id, maker in made.items():
        gymnasium.register(env_id, maker)
    try:
        name = env if env in made else f"{__name__}:{env}"
        with pytest.raises(ConfigError, match="render_mode"):
            figures(drawn, "--env", name, "--out", tmp_path / "film.gif")
    finally:
        for env_id in made:
            del gymnasium.registry[env_id]
    assert os.listdir(tmp_path) == []


def test_an_env_that_fails(drawn: Path, figures: Figures, tmp_path: Path) -> None:
    for fault, message in (
        ("step", r"raised RuntimeError in step\(\): the wheel came off"),
        ("render", f"{NAME} gave NoneType"),
    ):
        for name in ("film.gif", "film.mp4"):
            with pytest.raises(EnvError, match=message):
                figures(drawn, "--kwargs", json.dumps({"fault": fault}), "--out", tmp_path / name)
    assert os.listdir(tmp_path) == []
    with pytest.raises(ConfigError, match="Acrobot-v1 has the observations"):
        figures(drawn, "--env", "Acrobot-v1")
    with pytest.raises(EnvError, match="'colour'"):
        figures(drawn, "--kwargs", '{"colour": 3}')


def test_a_missing_package(drawn: Path, figures: Figures, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def render(self: Drawn) -> Any:
        raise gymnasium.error.DependencyNotInstalled("pygame is not installed")

    monkeypatch.setattr(Drawn, "render", render)
    with pytest.raises(ConfigError, match="needs a package that is not installed: pygame"):
        figures(drawn, "--out", tmp_path / "film.gif")


def test_bad_input(run: Path, tmp_path: Path, figures: Figures, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = [
        (["--out", tmp_path / "film.avi"], "films are written as .gif or .mp4"),
        (["--out", tmp_path / "none" / "film.gif"], "there is no folder"),
        (["--max-steps", 0], "--max-steps 0 must be at least 1"),
        (["--episodes", 0], "--episodes 0 must be at least 1"),
        (["--fps", 0], "--fps 0.0 must be above 0"),
        (["--size", 5], "--size 5 must be between 16"),
        (["--out", "/proc/film.gif"], "could not be written|cannot be written"),
    ]
    for words, message in wrong:
        with pytest.raises(ConfigError, match=message):
            figures(run, *words)
    assert main(["play", "nothing", "--root", str(tmp_path)]) == 2
    assert "ConfigError: there is no run 'nothing'" in capsys.readouterr().err


def test_pictures_are_shown_as_the_network_sees_them(tmp_path: Path, figures: Figures) -> None:
    small = {"net.hidden": (8,), "net.channels": (4,), "net.kernels": (8,), "net.strides": (8,), "world.stack": 2}
    run = train(tmp_path, "freewheel/Catch-v0", **small, **{"learner.compile": "off"})
    result = figures(run, "--to", tmp_path / "seen.gif")
    assert (result["lengths"], result["frames"]) == ([11], 12)
    with_panel, _ = read_gif(tmp_path / "seen.gif")
    figures(run, "--out", tmp_path / "plain.gif", "--no-seen")
    plain, _ = read_gif(tmp_path / "plain.gif")
    assert plain[0].shape == (84, 84, 3)
    height, width, _ = with_panel[0].shape
    assert height > 84
    assert width > 2 * 84
    assert np.abs(with_panel[5][:84, :84].astype(int) - plain[5]).max() < 8, "the game stands at the left"
