"""TensorBoard gets a film of the agent now and then; what cannot be filmed ends no training."""

from __future__ import annotations

import io
import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import freewheel
from freewheel.errors import ConfigError
from freewheel.films import clips
from freewheel.films.clips import Clips
from freewheel.worlds.catch import Catch

SMALL: dict[str, Any] = {
    "runtime": "sequential",
    "net.channels": (4,),
    "net.kernels": (8,),
    "net.strides": (8,),
    "net.hidden": (8,),
    "world.lanes": 4,
    "world.stack": 2,
    "replay.warmup_rows": 128,
    "learner.ratio": 1.0,
    "learner.compile": "off",
    "checkpoint.every_steps": 100,
    "eval_episodes": 0,
}


def train(root: Path, env: str, clips: Clips, **settings: Any) -> Path:
    given = {**SMALL, "log.folder": str(root), **settings}
    return freewheel.train(env, steps=500, settings=given, callbacks=[clips], is_quiet=True).folder


def test_a_clip_at_the_checkpoint_after_every_so_many_steps(tmp_path: Path) -> None:
    folder = train(tmp_path, "freewheel/Catch-v0", Clips(every_steps=250, max_steps=5))
    events = EventAccumulator(str(folder / "tb"))
    events.Reload()
    # Each clip is a file, and two of one second are read in any order.
    clips = sorted(events.Images("play"), key=lambda clip: clip.step)
    steps = [clip.step for clip in clips]
    assert len(steps) == 2
    assert steps[1] - steps[0] >= 250
    with Image.open(io.BytesIO(clips[0].encoded_image_string)) as film:
        assert film.format == "GIF"
        assert film.n_frames == 6, "five steps and the frame after them"
        assert film.size == (clips[0].width, clips[0].height)
    assert events.Tags()["scalars"], "the log's own files are still read"


def test_a_setting_does_it_too(tmp_path: Path) -> None:
    given = {**SMALL, "log.folder": str(tmp_path), "log.clip_every_steps": 250}
    folder = freewheel.train("freewheel/Catch-v0", steps=500, settings=given, is_quiet=True).folder
    events = EventAccumulator(str(folder / "tb"))
    events.Reload()
    assert len(events.Images("play")) == 2


def test_what_cannot_be_filmed_is_told_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train(tmp_path, f"{__name__}:undrawn", Clips(every_steps=1))
    assert capfd.readouterr().err.count("log: no more clips") == 1


def undrawn() -> Any:
    return Catch()


class Blind(Catch):
    """Trains well, and cannot be drawn."""

    def render(self) -> Any:
        raise RuntimeError("no display today")


class Stumbles(Catch):
    """Trains well, and fails where it is played to be filmed."""

    def step(self, action: Any) -> Any:
        if self.render_mode is not None:
            raise ZeroDivisionError("no ball today")
        return super().step(action)


@pytest.mark.parametrize(
    ("env", "told"),
    [
        (Blind, "Blind raised RuntimeError in render(): no display today"),
        (Stumbles, "Stumbles raised ZeroDivisionError in step(): no ball today"),
    ],
    ids=["render", "step"],
)
def test_an_env_that_raises_while_it_is_filmed_ends_no_training(
    env: type[Catch], told: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = train(tmp_path, f"{__name__}:{env.__name__}", Clips(every_steps=1))
    assert json.loads((folder / "result.json").read_text())["steps"] == 500
    said = [line for line in capfd.readouterr().err.splitlines() if "no more clips" in line]
    assert len(said) == 1
    assert told in said[0]


def test_an_env_object_has_no_clips(tmp_path: Path) -> None:
    given = {**SMALL, "world.lanes": 1, "log.folder": str(tmp_path), "log.clip_every_steps": 250}
    with pytest.raises(ConfigError, match="clip_every_steps was given, but has no effect: Catch is an env object"):
        freewheel.train(Catch(), steps=500, settings=given, is_quiet=True)


def test_numbers_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="every_steps=0"):
        Clips(every_steps=0)
    with pytest.raises(ConfigError, match="Catch is an env object"):
        Clips(every_steps=1, env=Catch())


@pytest.mark.parametrize(("dense", "most"), [(10, 10 * (1 + 4.7)), (0, 1000)])
def test_clips_of_a_long_run_become_rarer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dense: int, most: float
) -> None:
    """A thousand checkpoints: as many clips as asked for at first, then each after a tenth more of the run; 0 takes all."""
    monkeypatch.setattr(clips, "film_policy", lambda *given: (b"", (1, 1)))
    monkeypatch.setattr(clips, "load_policy", lambda *given, **named: None)
    monkeypatch.setattr(clips, "open_run", lambda folder: SimpleNamespace(tensorboard=None))
    steps: list[int] = []
    monkeypatch.setattr(clips, "write_clip", lambda folder, tag, step, gif, sides: steps.append(step))
    films = Clips(every_steps=100, dense=dense)
    for step in range(0, 100_000, 100):
        films.on_checkpoint(freewheel.Moment(step=step, folder=tmp_path), tmp_path)
    assert steps[:10] == list(range(0, 1000, 100))
    assert len(steps) <= most
    assert all(later - earlier <= max(100, later / 10 + 100) for earlier, later in itertools.pairwise(steps))
