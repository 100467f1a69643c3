"""A01: a checkpoint whose checksums are right and whose content is wrong is named quickly, with little memory, by an error of ours."""

from __future__ import annotations

import copy
import json
import math
import os
import random
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from forged import rewrite_state, seal

import freewheel
from freewheel.errors import CheckpointError, FreewheelError

# `make fault` sets it.
TIMES = int(os.environ.get("FREEWHEEL_FAULT", "1"))
SETTINGS: dict[str, Any] = {
    "runtime": "sequential",
    "world.lanes": 2,
    "replay.warmup_rows": 64,
    "learner.batch_size": 16,
    "checkpoint.replay": True,
    "eval_episodes": 0,
    "log.tensorboard": False,
    "log.csv": False,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = {**SETTINGS, "net.hidden": (8, 8), "log.folder": str(tmp_path_factory.mktemp("runs"))}
    return freewheel.train("CartPole-v1", steps=100, preset="none", settings=settings, is_quiet=True).folder


class StopAtOnce(freewheel.Callback):
    def on_step(self, moment: freewheel.Moment) -> None:
        moment.stop()


def resume(folder: Path) -> None:
    freewheel.train(resume=folder, steps=104, callbacks=[StopAtOnce()], is_quiet=True)


ACTIONS: dict[str, Callable[[Path], Any]] = {"load": freewheel.load, "resume": resume}


def set_in(state: dict[str, Any], where: str, value: Any) -> None:
    *above, last = where.split("/")
    for name in above:
        state = state[name]
    if value is REMOVED:
        del state[last]
    else:
        state[last] = value


REMOVED = object()
HUGE_BOX = {"kind": "Box", "low": 0, "high": 255, "shape": [100_000, 100_000], "dtype": "uint8"}
HUGE_BOXES = {"kind": "Tuple", "parts": [{**HUGE_BOX, "shape": [1000, 1000]}] * 100}
# Values of a state by their places, and what they break.
FOR_BOTH: list[tuple[str, Any]] = [
    ("config", REMOVED),
    ("config", None),
    ("config", []),
    ("config", "CartPole-v1"),
    ("config", {}),
    ("config/net", None),
    ("config/net/hidden", [1e9]),
    ("config/net/hidden", [10**9, 10**9]),
    ("config/net/hidden", [30_000, 30_000]),
    ("config/net/hidden", [2**62, 2**62]),
    ("config/net/hidden", [8] * 200_000),
    ("config/algo", 5),
    ("config/algo", ["dqn"]),
    ("config/world", [1]),
    ("config/world/kwargs", "[" * 100_000),
    ("obs_space", None),
    ("obs_space", {}),
    ("obs_space", {"kind": "Evil"}),
    ("obs_space", {"kind": ["Box"]}),
    ("obs_space", {"kind": "Tuple", "parts": 5}),
    ("obs_space", {"kind": "Box", "low": 0, "high": 1, "shape": [-4], "dtype": "float32"}),
    ("obs_space", {"kind": "Box", "low": 0, "high": 1, "shape": [4], "dtype": "object"}),
    ("obs_space", HUGE_BOX),
    ("obs_space", HUGE_BOXES),
    ("obs_space", {"kind": "MultiBinary", "n": [10**9, 4]}),
    ("obs_space", {"kind": "Discrete", "n": 10**18, "start": 0, "dtype": "int64"}),
    ("action_space", {"kind": "Discrete", "n": 10**12, "start": 0, "dtype": "int64"}),
    ("action_space", {"kind": "Discrete", "n": -1, "start": 0, "dtype": "int64"}),
    ("policies", 5),
    ("policies", []),
    ("policies", {"../..": {}}),
    ("policies", {"red": 1}),
    ("steps", "many"),
    ("steps", -1),
    ("steps", True),
    ("steps", 2**70),
    ("updates", None),
    ("updates", -3),
    ("seconds", "long"),
    ("seconds", -1.0),
    ("seconds", math.nan),
    ("version", -1),
    ("dials", [1]),
    ("episodes", None),
]
FOR_RESUME: list[tuple[str, Any]] = [
    ("steps", REMOVED),
    ("updates", REMOVED),
    ("seconds", REMOVED),
    ("dials", {"epsilon": "x"}),
    ("dials", {"ratio": -1}),
    ("dials", {"other": 1}),
    ("episodes", {}),
    ("episodes/returns", "x"),
    ("episodes/lengths", [-1, -1]),
    ("episodes/num_finished", -1),
    ("from_step", "x"),
    ("from_step", math.nan),
    ("from_step", -1e18),
    ("from_updates", None),
    ("from_updates", -(10**9)),
    ("replay", 1),
    ("replay/random", []),
    ("replay/random", ["a", 1, 2, 3]),
    ("replay/max_priority", -1.0),
    ("replay/max_priority", math.nan),
]
# Tensors by name, and what is done to them.
NAN = torch.tensor(math.nan)
TENSORS: list[tuple[str, Callable[[torch.Tensor], torch.Tensor | None], tuple[str, ...]]] = [
    ("net.body.layers.linear0.weight", lambda t: t.fill_(math.nan), ("load", "resume")),
    ("net.head.advantage.bias", lambda t: t.index_fill_(0, torch.tensor([1]), math.inf), ("load", "resume")),
    ("net.head.advantage.bias", lambda t: t.half(), ("load", "resume")),
    ("net.head.advantage.bias", lambda t: t[:1], ("load", "resume")),
    ("net.head.advantage.bias", lambda t: None, ("load", "resume")),
    ("target.head.advantage.bias", lambda t: t.fill_(-math.inf), ("resume",)),
    ("optimizer.mean", lambda t: t.fill_(math.nan), ("resume",)),
    ("optimizer.square", lambda t: t.fill_(-1), ("resume",)),
    ("optimizer.updates", lambda t: t.fill_(-1), ("resume",)),
    ("optimizer.bad_in_row", lambda t: t.fill_(-(10**6)), ("resume",)),
    ("random.learner", lambda t: None, ("resume",)),
    ("random.learner", lambda t: t[:5], ("resume",)),
    ("explore.drawn", lambda t: t.fill_(-1), ("resume",)),
    ("world.episode", lambda t: t.fill_(-1), ("resume",)),
    ("world.seed", lambda t: t.fill_(-1), ("resume",)),
    ("world.num_taken", lambda t: t.fill_(-1), ("resume",)),
]


def copied(run: Path, to: Path) -> tuple[Path, Path]:
    shutil.copytree(run, to)
    return to, next((to / "checkpoints").iterdir())


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def assert_refused(action: str, folder: Path, case: object, error: type[FreewheelError] = CheckpointError) -> None:
    before = peak_mb()
    with pytest.raises(error) as told:
        ACTIONS[action](folder)
    assert type(told.value) is error, case
    assert str(told.value).isprintable(), case
    assert len(str(told.value)) < 1_000, case
    assert peak_mb() - before < 100, case


@pytest.mark.parametrize("action", ACTIONS)
def test_a01_nonsense_in_a_state_is_named(tmp_path: Path, run: Path, action: str) -> None:
    ACTIONS[action](copied(run, tmp_path / "whole")[0])  # what it imports is no case's memory
    cases = FOR_BOTH
    if action == "resume":  # with the settings of the run
        cases = [case for case in FOR_BOTH if not case[0].startswith("config/") and case[1] != {}] + FOR_RESUME
    for number, (where, value) in enumerate(cases):
        folder, path = copied(run, tmp_path / str(number))

        def change(state: dict[str, Any], where: str = where, value: Any = value) -> dict[str, Any]:
            set_in(state, where, value)
            return state

        rewrite_state(path, change)
        assert_refused(action, folder, (where, str(value)[:50]))
    folder, path = copied(run, tmp_path / "empty")
    rewrite_state(path, lambda state: {})
    assert_refused(action, folder, "{}")


@pytest.mark.parametrize("action", ACTIONS)
def test_a01_numbers_that_cannot_be_used_are_named(tmp_path: Path, run: Path, action: str) -> None:
    for number, (name, change, actions) in enumerate(TENSORS):
        if action not in actions:
            continue
        folder, path = copied(run, tmp_path / str(number))
        tensors = safetensors.torch.load_file(path / "tensors.safetensors")
        changed = change(tensors.pop(name).clone())
        safetensors.torch.save_file(
            tensors | ({} if changed is None else {name: changed.contiguous()}), path / "tensors.safetensors"
        )
        seal(path)
        assert_refused(action, folder, (name, number))


def test_a01_nonsense_in_the_settings_of_a_run_is_named(tmp_path: Path, run: Path) -> None:
    saved = json.loads((run / "config.json").read_text())
    cases = [(where.removeprefix("config/"), value) for where, value in FOR_BOTH if where.startswith("config/")]
    for number, (where, value) in enumerate([*cases, ("seed", -5), ("policies", [1]), ("policies", {"a/b": {}})]):
        folder, _ = copied(run, tmp_path / str(number))
        config = copy.deepcopy(saved)
        set_in(config, where, value)
        (folder / "config.json").write_text(json.dumps(config))
        before = peak_mb()
        with pytest.raises(CheckpointError) as told:
            resume(folder)
        assert len(str(told.value)) < 1_000
        assert peak_mb() - before < 100, where


JUNK = [None, -1, 0, "x", "", [], {}, 2**70, math.nan, True, [1, "a"], -0.5, {"a": {"b": []}}, "\ud800"]


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values in a JSON value, its objects and lists too."""
    inner = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    return [path] * bool(path) + [found for key, part in inner for found in leaves(part, (*path, key))]


@pytest.mark.parametrize("part", range(TIMES))
@pytest.mark.parametrize("action", ACTIONS)
def test_a01_any_nonsense_is_an_error_of_ours_or_harmless(tmp_path: Path, run: Path, action: str, part: int) -> None:
    chance = random.Random(part)
    name = "state.json" if action == "load" else "config.json"
    for number in range(60 if action == "load" else 30):
        folder, path = copied(run, tmp_path / str(number))
        is_state = name == "state.json" or number % 2 == 0
        file = path / "state.json" if is_state else folder / "config.json"
        value = json.loads(file.read_text())
        where = chance.choice(
            [path for path in leaves(value) if path != ("learner", "ratio")]
        )  # without an upper bound
        *above, last = where
        inner = value
        for key in above:
            inner = inner[key]
        inner[last] = junk = chance.choice(JUNK)
        file.write_text(json.dumps(value))
        if is_state:
            seal(path)
        try:
            ACTIONS[action](folder)
        except FreewheelError:
            continue
        except BaseException as error:
            raise AssertionError(f"part {part}, number {number}: {where} = {junk!r}") from error


@pytest.mark.parametrize("name", ["checkpoints", "tb", "metrics.csv"])
def test_a01_a_resumed_run_does_not_write_through_a_link(tmp_path: Path, run: Path, name: str) -> None:
    folder, _ = copied(run, tmp_path / "run")
    away = tmp_path / "away"
    if (folder / name).exists():
        (folder / name).rename(away)
    else:
        away.mkdir()
    (folder / name).symlink_to(away)
    before = sorted(away.rglob("*"))
    with pytest.raises(CheckpointError, match=f"{name} is a link"):
        resume(folder)
    assert sorted(away.rglob("*")) == before
