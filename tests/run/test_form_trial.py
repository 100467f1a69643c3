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
from freewheel.learners import forms
from freewheel.learners.forms import Form
from freewheel.run import form_trial
from freewheel.run.job import Job
from freewheel.run.layout import choose
from freewheel.run.local import plan

FRAMES = "freewheel.bench.peers.frames_env:make"


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


def planned(config: Config, body: Any = None) -> Job:
    before = torch.get_num_threads()
    try:
        return plan(config, FRAMES, body, None, choose(config, 2))
    finally:
        torch.set_num_threads(before)


def test_a_short_run_takes_the_settled_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(form_trial, "try_forms", lambda *given: pytest.fail("tried"))
    job = planned(settings())
    assert (job.form.memory_format, job.why_form) == ("channels_last", "")


def test_forms_are_tried_once_and_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(form_trial, "LEAST_UPDATES", 10)
    job = planned(settings())
    assert "by the time of one gradient here: fp32, channels_last" in job.why_form
    monkeypatch.setattr(form_trial, "try_forms", lambda *given: pytest.fail("tried again"))
    again = planned(settings())
    assert again.form == job.form
    assert again.why_form == f"{job.why_form} (remembered)"
    assert not planned(settings(learner__threads=1, learner__memory_format="contiguous")).why_form


def test_a_busy_machine_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(form_trial, "LEAST_UPDATES", 10)
    monkeypatch.setattr(os, "getloadavg", lambda: (99.0, 0.0, 0.0))
    fast, slow = Form("fp32", "contiguous", 1), Form("fp32", "channels_last", 1)
    times = {slow: [0.2], fast: [0.1]}
    monkeypatch.setattr(
        form_trial, "try_forms", lambda job, open_forms: ({f: times.get(f, [0.3]) for f in open_forms}, "")
    )
    job = planned(settings())
    assert job.form == fast
    assert forms.recall(job.form_key) is None


def test_a_form_that_kills_its_process_is_not_available() -> None:
    job = planned(settings(), Sick)
    healthy, sick = Form(), Form("bf16")
    found, died = form_trial.try_forms(job, [healthy, sick])
    assert died == "SIGILL"
    assert len(found[healthy]) >= form_trial.LEAST_ROUNDS  # what was found before is kept
    assert found[sick] == []
    assert forms.sentence({healthy: [0.001], sick: []}, died).endswith("is not available here (SIGILL)")


def test_a_gain_that_is_known_is_found_again() -> None:
    job = planned(settings())
    assert form_trial.known_gain(job) is None
    forms.remember(job.form_key, {"compiled": 1.5})
    assert form_trial.known_gain(job) == 1.5
    forms.remember(job.form_key, {"compiled": "fast"})
    assert form_trial.known_gain(job) is None
