"""The values behind the golden hashes: rows are read as they were written, and every change of a value changes its hash alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import canonical
import gymnasium
import numpy as np
import pytest
from golden_cases import COMMON, VALUE
from gymnasium import spaces

import freewheel

EPISODE = 7


class Counting(gymnasium.Env[Any, Any]):
    """The observation is the step of the episode, the reward a tenth of it; three bytes, which fill no word."""

    observation_space = spaces.Box(0, 255, (3,), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._step = 0
        return np.zeros(3, np.uint8), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        return np.full(3, self._step, np.uint8), self._step / 10, self._step == EPISODE, False, {}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a run whose replay has wrapped around: 400 steps, and room for 50 rows a lane."""
    settings = {**COMMON, **VALUE, "replay.rows": 150, "replay.warmup_rows": 50, "replay.prioritized": True}
    folder = {"log.folder": str(tmp_path_factory.mktemp("canonical")), "checkpoint.every_steps": 0}
    run = freewheel.train(
        Counting, algo="dqn", steps=400, preset="none", settings={**settings, **folder}, is_quiet=True
    )
    return canonical.newest(run.folder / "checkpoints")


def lanes_of(checkpoint: Path) -> list[dict[str, Any]]:
    fields = canonical._fields(json.loads((checkpoint / "state.json").read_text()), [])
    return list(canonical._lanes(checkpoint / "replay.bin", fields, 3))


def test_rows_are_those_of_the_env_oldest_first(checkpoint: Path) -> None:
    for rows in lanes_of(checkpoint):
        assert {len(column) for column in rows.values()} == {50}
        step = rows["step"].astype(np.int64)
        assert ((np.diff(step) == 1) | (step[:-1] == EPISODE)).all()
        assert (rows["obs"] == step[:, None]).all()
        assert rows["reward"] == pytest.approx(step / 10)
        assert ((rows["flags"] != 0) == (step == EPISODE)).all()
        assert (rows["action"][step == EPISODE] == 0).all()
        assert set(rows["action"].tolist()) == {0, 1}
        assert (np.diff(rows["version"].astype(np.int64)) >= 0).all()
        assert (rows["priority"] > 0).any()
        assert (rows["priority"][step == EPISODE] == -1).all()  # a final observation is never drawn


def test_a_bit_that_changes_is_seen_in_its_own_value(checkpoint: Path, tmp_path: Path) -> None:
    changed = tmp_path / checkpoint.name
    shutil.copytree(checkpoint, changed)
    before = canonical.values_of(checkpoint, 3, 0)
    assert canonical.values_of(changed, 3, 0) == before
    state = json.loads((changed / "state.json").read_text())
    state["updates"] += 1
    state["seconds"] += 1.0
    (changed / "state.json").write_text(json.dumps(state))
    rows = np.fromfile(changed / "replay.bin", np.uint64)
    rows[-2] ^= 1  # the observation in the last slot of the last lane: a row ends with obs and action, a word each
    rows.tofile(changed / "replay.bin")
    after = canonical.values_of(changed, 3, 0)
    assert {name for name in before if before[name] != after[name]} == {"counter.updates", "rows.lane2.obs"}


def test_names_on_disk_become_canonical(checkpoint: Path) -> None:
    names = set(canonical.values_of(checkpoint, 3, 0))
    assert {"counter.steps", "counter.updates", "replay.random", "random.learner", "explore.drawn"} <= names
    weights = {name.removeprefix("weights.") for name in names if name.startswith("weights.")}
    assert weights == {name.removeprefix("target.") for name in names if name.startswith("target.")}
    assert weights
    assert not names & {"counter.seconds", "config.steps", "counter.loss"}


def test_the_slots_of_a_ring_follow_from_the_rows_that_are_stored() -> None:
    assert canonical._slots(np.array([10, 10]), 20) == 11  # not full: one more than there are
    assert canonical._slots(np.array([10, 10]), 12) == 6
    assert canonical._slots(np.array([3, 10]), 9) == 6  # one lane is full, the other is not
