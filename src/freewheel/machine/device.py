"""Where the learner works: the device asked for, or the best there is."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch

from freewheel.errors import ConfigError


def present() -> list[str]:
    """The kinds of device of this machine, the fastest first."""
    found = []
    if torch.cuda.is_available():
        found.append("cuda")
    if torch.backends.mps.is_available():
        found.append("mps")
    return [*found, "cpu"]


def cuda_devices() -> list[str]:
    """Each CUDA device by its name."""
    return [f"cuda:{i}" for i in range(torch.cuda.device_count())]


def pick_device(asked: str, setting: str = "learner.device") -> torch.device:
    """`asked` is auto, cpu, mps, cuda or one of several CUDA devices, as in cuda:1."""
    have = present()
    device = torch.device(have[0] if asked == "auto" else asked)
    if device.type not in have:
        cure = f", or auto, which takes {have[0]}" if setting == "learner.device" else ""
        raise ConfigError(
            f"{setting}={asked} is not there; this machine has {', '.join(have)}. Choose one of them{cure}."
        )
    if device.type == "cuda" and device.index is not None and str(device) not in (numbered := cuda_devices()):
        raise ConfigError(
            f"{setting}={asked} is not there; this machine has {', '.join(numbered)}. Choose one of them, or cuda."
        )
    return device


def use_of(device: torch.device, cuda: Any = torch.cuda) -> dict[str, float]:
    """For the log: memory that torch holds on a CUDA device, and where nvidia-ml-py is installed how busy the device is."""
    if device.type != "cuda":
        return {}
    found = {"device_memory_mb": cuda.memory_reserved(device) / 1e6}
    with suppress(ModuleNotFoundError):
        found["device_share"] = cuda.utilization(device) / 100
    return found


def prepare(device: torch.device | str) -> None:
    """Of the calling process, before it computes on the device."""
    device = torch.device(device)
    if device.type == "cuda":
        # float32 products on tensor cores, and the fastest convolution for shapes that never change.
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = True
        if device.index is not None:
            # Else what names no device, such as pinned memory, would take room on the first one too.
            torch.cuda.set_device(device)
