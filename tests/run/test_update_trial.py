"""The trial of forms: in a process that may die of one, once per machine and network, not for short runs."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from freewheel.config import Config, assemble
from freewheel.machine import cache
from freewheel.machine import update_form as forms
from freewheel.machine.trial import Measured
from freewheel.machine.update_form import Form
from freewheel.run import update_trial
from freewheel.run.layout import choose
from freewheel.run.plan import Plan, Setup
from freewheel.run.runtime import plan_local

FRAMES = "benchmarks.peers.frames_env:make"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))


class Sick(nn.Module):
    """Dies in reduced precision, as a machine does that promises what it has not."""

    def __init__(self, obs_space: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(84 * 84, 4)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        if torch.is_autocast_enabled("cpu"):
            os.kill(os.getpid(), signal.SIGILL)
        out: torch.Tensor = self.linear(obs.float().flatten(1) / 255)
        return out


def settings(**more: Any) -> Config:
    given = {
        "runtime": "local",
        "steps": 1000,
        "world.lanes": 2,
        "world.kind": "inline",
        "net.channels": (4,),
        "net.kernels": (8,),
        "net.strides": (8,),
        "net.hidden": (8,),
        "learner.batch_size": 4,
        "learner.ratio": 4.0,
        "replay.rows": 100,
        "replay.warmup_rows": 10,
    }
    return assemble(FRAMES, {**given, **{name.replace("__", "."): value for name, value in more.items()}}, "none")


def planned(config: Config, body: Any = None) -> Plan:
    before = torch.get_num_threads()
    try:
        return plan_local(Setup(config, FRAMES, choose(config, 2), body))
    finally:
        torch.set_num_threads(before)


def test_a_short_run_takes_the_settled_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update_trial, "try_forms", lambda *given: pytest.fail("tried"))
    plan = planned(settings())
    assert (plan.policies[0].form.memory_format, plan.notes) == ("channels_last", [])
    monkeypatch.setattr("freewheel.machine.precision.why_not", lambda name, device: "it died")
    asked = planned(settings(learner__precision="auto"))  # an open precision is told of
    assert asked.notes[0] == f"The update uses {plan.policies[0].form}: the run is too short for a trial."


def test_forms_are_tried_once_and_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "LEAST_UPDATES", 10)
    plan = planned(settings())
    assert "by the time of one gradient: fp32, channels_last" in plan.notes[0]
    monkeypatch.setattr(update_trial, "try_forms", lambda *given: pytest.fail("tried again"))
    again = planned(settings())
    assert again.policies[0].form == plan.policies[0].form
    assert again.notes == [f"{plan.notes[0][:-1]} (measured earlier)."]
    assert not planned(settings(learner__threads=1, learner__memory_format="contiguous")).notes


def test_a_busy_machine_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "LEAST_UPDATES", 10)
    monkeypatch.setattr(os, "getloadavg", lambda: (99.0, 0.0, 0.0))
    fast, slow = Form("fp32", "contiguous", 1), Form("fp32", "channels_last", 1)
    times = {slow: [0.2], fast: [0.1]}
    monkeypatch.setattr(
        update_trial,
        "try_forms",
        lambda plan, policy, open_forms: Measured({f: times.get(f, [0.3]) for f in open_forms}),
    )
    plan = planned(settings())
    assert plan.policies[0].form == fast
    assert cache.recall(plan.policies[0].form_key) == {}


def test_a_form_that_kills_its_process_is_not_available() -> None:
    plan = planned(settings(), Sick)
    healthy, sick = Form(), Form("bf16")
    found = update_trial.try_forms(plan, plan.policies[0], [healthy, sick])
    assert found.failure == "its process died by SIGILL"
    assert len(found.times[healthy]) >= update_trial.LEAST_ROUNDS  # what was found before is kept
    assert found.times[sick] == []


def test_a_trial_that_fails_at_once_leaves_the_settled_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "LEAST_UPDATES", 10)
    monkeypatch.setattr(
        update_trial, "try_forms", lambda plan, policy, open_forms: Measured({f: [] for f in open_forms}, "no g++")
    )
    plan = planned(settings())
    assert plan.policies[0].form == Form("fp32", "channels_last", plan.policies[0].form.threads)
    assert plan.notes == [f"The update uses {plan.policies[0].form}: the trial failed (no g++)."]
    assert cache.recall(plan.policies[0].form_key) == {}
