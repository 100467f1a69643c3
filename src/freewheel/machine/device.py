"""Devices: which ones this machine has, and which one each role computes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from freewheel.errors import ConfigError

# Forward passes per row that the learner trains on: target, own, and two for the gradient. An actor makes one per row it collects.
PASSES = 4.0


def present() -> list[str]:
    """The kinds of devices of this machine, the fastest first."""
    found = []
    if torch.cuda.is_available():
        found.append("cuda")
    if torch.backends.mps.is_available():
        found.append("mps")
    return [*found, "cpu"]


def cuda_devices() -> list[str]:
    """The names of all CUDA devices."""
    return [f"cuda:{i}" for i in range(torch.cuda.device_count())]


def pick_device(asked: str, setting: str = "learner.device") -> torch.device:
    """`asked` is auto, cpu, mps, cuda, or one of several CUDA devices such as cuda:1."""
    have = present()
    device = torch.device(have[0] if asked == "auto" else asked)
    name, cure = device.type, f", or auto, which uses {have[0]}" if setting == "learner.device" else ""
    if name == "cuda" and name in have and device.index is not None:
        name, have, cure = str(device), cuda_devices(), ", or cuda"
    if name not in have:
        raise ConfigError(
            f"{setting}={asked} does not exist: this machine has {', '.join(have)}. Choose one of them{cure}."
        )
    return device


def use_of(device: torch.device, cuda: Any = torch.cuda) -> dict[str, float]:
    """For the log: the memory that torch holds on a CUDA device, and how busy it is if nvidia-ml-py is installed."""
    if device.type != "cuda":
        return {}
    found = {"device_memory_mb": cuda.memory_reserved(device) / 1e6}
    with suppress(ModuleNotFoundError):
        found["device_share"] = cuda.utilization(device) / 100
    return found


def prepare(device: torch.device | str) -> None:
    """Sets torch up in this process, before it computes on the device."""
    device = torch.device(device)
    if device.type == "cuda":
        # float32 products on tensor cores, and the fastest convolution algorithm, as shapes never change.
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = True
        if device.index is not None:
            # Calls that name no device, such as pinned memory, would otherwise take memory on the first one.
            torch.cuda.set_device(device)


@dataclass(frozen=True)
class Placing:
    """A device for each gradient worker, the learner first, and for each actor."""

    workers: tuple[str, ...]
    actors: tuple[str, ...]


def place(
    learner: str, workers: int, act: str, lanes_per_actor: Sequence[int], ratio: float, cuda: Sequence[str]
) -> Placing:
    """Actors on "cuda" go where the load is least. `cuda` are the names of all CUDA devices, `ratio` is the replay ratio."""
    devices = place_workers(learner, workers, cuda)
    if act != "cuda":
        return Placing(devices, (act,) * len(lanes_per_actor))
    loads = {device: PASSES * ratio * devices.count(device) / len(devices) for device in cuda}
    lanes = sum(lanes_per_actor)
    return Placing(devices, balanced([count / lanes for count in lanes_per_actor], loads))


def place_workers(learner: str, workers: int, cuda: Sequence[str]) -> tuple[str, ...]:
    """One CUDA device per worker, the learner's own first; workers on the CPU share it."""
    kind = learner.partition(":")[0]
    if kind == "cuda":
        own = cuda[0] if learner == "cuda" else learner
        if workers > len(cuda):
            raise ConfigError(
                f"learner.workers={workers} on learner.device={learner} need one CUDA device each, but this machine has "
                f"{len(cuda)} ({', '.join(cuda)}). Lower learner.workers, or set learner.device to cpu."
            )
        return (own, *[device for device in cuda if device != own][: max(workers, 1) - 1])
    if workers > 1 and kind != "cpu":
        raise ConfigError(
            f"learner.workers={workers} needs the CPU or CUDA devices, but learner.device={learner}. "
            "Set learner.workers to 1, or learner.device to cpu."
        )
    return (learner,) * max(workers, 1)


def balanced(loads: Sequence[float], present: Mapping[str, float]) -> tuple[str, ...]:
    """A device for each load, the heaviest first: the device with the least load by then. `present` are the loads before."""
    sums, found = dict(present), [""] * len(loads)
    for i in sorted(range(len(loads)), key=lambda i: -loads[i]):
        found[i] = min(sums, key=lambda device: sums[device])
        sums[found[i]] += loads[i]
    return tuple(found)
