from __future__ import annotations

import pytest
import torch
from test_step import make, rows

from freewheel.errors import ConfigError
from freewheel.learners import device


def test_a_device_that_is_not_there_is_refused_with_those_that_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "present", lambda: ["cpu"])
    for asked in ("cuda", "mps"):
        with pytest.raises(
            ConfigError, match=f"learner.device={asked} is not there; this machine has cpu. .*takes cpu"
        ):
            device.pick_device(asked)
    assert device.pick_device("auto") == device.pick_device("cpu") == torch.device("cpu")


def test_auto_takes_the_first_of_those_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "present", lambda: ["mps", "cpu"])
    assert device.pick_device("auto") == torch.device("mps")
    assert device.pick_device("cpu") == torch.device("cpu")


def test_only_cuda_changes_the_flags_of_torch() -> None:
    before = torch.backends.cudnn.benchmark, torch.backends.cuda.matmul.allow_tf32
    device.pick_device("cpu")
    assert (torch.backends.cudnn.benchmark, torch.backends.cuda.matmul.allow_tf32) == before
    assert "cpu" in device.present()


def test_a_step_works_on_its_device_wherever_the_batch_lies() -> None:
    """With torch's device that computes nothing: it refuses tensors that were not moved to it."""
    step = make(device="meta")
    assert {tensor.device.type for tensor in step.tensors().values()} == {"meta"}
    done = step.update(rows(0), {}, 1e-3)
    assert {tensor.device.type for tensor in (done.loss, done.norm, *done.outcome)} == {"meta"}
