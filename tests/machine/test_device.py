from __future__ import annotations

import pytest
import torch
from small_updates import make, rows

from freewheel.errors import ConfigError
from freewheel.machine import device


def test_a_device_that_is_not_there_is_refused_with_those_that_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "present", lambda: ["cpu"])
    for asked in ("cuda", "mps"):
        with pytest.raises(
            ConfigError, match=f"learner.device={asked} does not exist: this machine has cpu. .*uses cpu"
        ):
            device.pick_device(asked)
    assert device.pick_device("auto") == device.pick_device("cpu") == torch.device("cpu")


def test_auto_takes_the_first_of_those_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "present", lambda: ["mps", "cpu"])
    assert device.pick_device("auto") == torch.device("mps")
    assert device.pick_device("cpu") == torch.device("cpu")


def test_only_cuda_changes_the_flags_of_torch() -> None:
    before = torch.backends.cudnn.benchmark, torch.backends.cuda.matmul.allow_tf32
    device.prepare(device.pick_device("cpu"))
    assert (torch.backends.cudnn.benchmark, torch.backends.cuda.matmul.allow_tf32) == before
    assert "cpu" in device.present()


def test_one_of_several_cuda_devices_goes_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "present", lambda: ["cuda", "cpu"])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert device.cuda_devices() == ["cuda:0", "cuda:1"]
    assert device.pick_device("cuda:1") == torch.device("cuda:1")
    assert device.pick_device("cuda") == device.pick_device("auto") == torch.device("cuda")
    with pytest.raises(ConfigError, match=r"learner.device=cuda:2 does not exist: .* has cuda:0, cuda:1\. Choose one"):
        device.pick_device("cuda:2")
    with pytest.raises(ConfigError, match=r"local.act_device=cuda:7 does not exist"):
        device.pick_device("cuda:7", "local.act_device")


def test_a_process_is_made_ready_for_its_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    flags = torch.backends.cuda.matmul, torch.backends.cudnn
    before = flags[0].allow_tf32, flags[1].allow_tf32, flags[1].benchmark
    try:
        flags[0].allow_tf32 = flags[1].allow_tf32 = flags[1].benchmark = False
        device.prepare("cpu")
        assert (flags[0].allow_tf32, flags[1].allow_tf32, flags[1].benchmark) == (False, False, False)
        device.prepare("cuda:1")
        assert (flags[0].allow_tf32, flags[1].allow_tf32, flags[1].benchmark) == (True, True, True)
    finally:
        flags[0].allow_tf32, flags[1].allow_tf32, flags[1].benchmark = before
    assert chosen == [torch.device("cuda:1")]


class Cuda:
    def __init__(self, has_nvml: bool) -> None:
        self.has_nvml = has_nvml

    def memory_reserved(self, device: torch.device) -> int:
        return 3_000_000_000

    def utilization(self, device: torch.device) -> int:
        if not self.has_nvml:
            raise ModuleNotFoundError("nvidia-ml-py does not seem to be installed")
        return 83


def test_the_use_of_a_cuda_device_is_told_as_far_as_it_is_known() -> None:
    there = torch.device("cuda:1")
    assert device.use_of(there, Cuda(True)) == {"device_memory_mb": 3000.0, "device_share": 0.83}
    assert device.use_of(there, Cuda(False)) == {"device_memory_mb": 3000.0}
    assert device.use_of(torch.device("cpu"), Cuda(True)) == {}


def test_an_update_works_on_its_device_wherever_the_batch_lies() -> None:
    """With torch's device that computes nothing: it refuses tensors that were not moved to it."""
    update = make(device="meta")
    assert {tensor.device.type for tensor in update.tensors().values()} == {"meta"}
    done = update(rows(0), {}, {"lr": 1e-3})
    assert {tensor.device.type for tensor in (done.loss, done.norm, *done.outcome)} == {"meta"}
