"""Runs of the commit before policies had names are loaded, and go on as they would have gone on there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from make_old_checkpoints import CASES, observations

import freewheel
from freewheel.config import from_dict
from freewheel.store.checkpoint import load_newest

OLD = Path(__file__).parent / "old_checkpoints"
EXPECTED: dict[str, Any] = json.loads((OLD / "expected.json").read_text())


@pytest.fixture(params=CASES)
def algo(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def run(algo: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(OLD / algo, tmp_path / algo))


def test_the_policy_acts_as_it_did(algo: str, run: Path) -> None:
    actions = EXPECTED[algo]["actions"]
    assert {0, 1} == set(actions)
    assert freewheel.load(run).act(observations()).tolist() == actions


def test_the_run_goes_on_as_it_would_have(algo: str, run: Path) -> None:
    """Weights to a tolerance: float bits depend on the processor."""
    expected = EXPECTED[algo]
    resumed = freewheel.train(resume=run, is_quiet=True)
    assert resumed.returns == expected["returns"]
    assert resumed.result["updates"] == expected["updates"]
    checkpoint = load_newest(run / "checkpoints")
    sums = {name: checkpoint.tensors[name].double().sum().item() for name in expected["weights"]}
    assert sums == pytest.approx(expected["weights"], rel=1e-3, abs=1e-5)
    assert checkpoint.state["dials"] == ({"epsilon": 0.25} if algo == "dqn" else {})


def test_its_settings_may_change_on_resume(algo: str, run: Path) -> None:
    longer = freewheel.train(resume=run, steps=120, settings={"checkpoint.keep": 1}, is_quiet=True)
    assert longer.result["steps"] >= 120
    assert len(list((run / "checkpoints").glob("step-*"))) == 1


def test_a_setting_that_was_renamed_keeps_its_value(run: Path) -> None:
    saved = json.loads((run / "config.json").read_text())
    for value in (True, False):
        saved["local"]["ahead"] = value
        assert from_dict(saved).local.target_process is value
