"""Trial: the precision of the network's passes. A processor may announce bf16 and die of it, so a throwaway process tries it first."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

from freewheel.machine import cache, trial
from freewheel.machine.trial import Choice, Measured

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
TIMEOUT_S = 60.0
# Only a clear gain is worth fewer digits: the measured time varies by a few percent between trials.
LEAST_GAIN = 1.1


def choose(asked: str, device: str) -> Choice[str]:
    """The precision that was asked for if it runs here, with "auto" the fastest; fp32 otherwise."""
    if asked == "fp32":
        return Choice(asked)
    each = {name: tried(name, device) for name in (DTYPES if asked == "auto" else [asked])}
    speeds = {name: _speed(name, measured) for name, measured in each.items() if not measured.failure}
    times = {"fp32": [1.0], **{name: [1 / speed] for name, speed in speeds.items()}}
    chosen = trial.choose(times, LEAST_GAIN) if asked == "auto" else asked if asked in speeds else "fp32"
    said = ", ".join(
        f"{name} "
        + (f"is {speeds[name]:.2f} times as fast as fp32" if name in speeds else f"does not run here ({found.failure})")
        + found.suffix
        for name, found in each.items()
    )
    return Choice(chosen, f"Training in {chosen}{', as asked' if chosen == asked else ''}: {said}.", times)


def why_not(name: str, device: str) -> str:
    """Why this machine cannot compute in the precision; empty if it can."""
    return tried(name, device).failure


def tried(name: str, device: str) -> Measured[str]:
    """Seconds of the same passes in fp32 and in the precision: remembered, or measured in a throwaway process."""
    candidates = ["fp32", name]
    key = cache.key_of("precision", name, device, torch.cuda.get_device_name() if device == "cuda" else "")
    known = trial.recall(key, candidates)
    if known is not None and (known.failure or all(known.times.values())):
        return known
    report = trial.throwaway(time_passes, name, device, timeout_s=TIMEOUT_S)
    times = dict(zip(candidates, report.told[0] if report.told else [[], []], strict=True))
    measured = Measured(times, report.failure)
    # SIGKILL comes from outside, often for lack of memory, and says nothing about the precision.
    if not report.failure or ((report.exit_code or 0) < 0 and report.exit_code != -signal.SIGKILL):
        trial.remember(key, measured)
    return measured


def time_passes(name: str, device: str, tell: Callable[[Any], None]) -> None:
    """Tells the seconds of a matrix product and a convolution with their gradients, in fp32 and in the precision."""
    torch.set_num_threads(1)
    rows, matrix = (torch.randn(512, 512, device=device, requires_grad=True) for _ in range(2))
    image = torch.randn(4, 4, 16, 16, device=device, requires_grad=True)
    kernel = torch.randn(8, 4, 3, 3, device=device, requires_grad=True)

    def passes(dtype: torch.dtype | None) -> None:
        with torch.autocast(device, dtype, enabled=dtype is not None):
            out = rows @ matrix
            total = out.float().square().mean() + F.conv2d(image, kernel).float().square().mean()
        made = torch.autograd.grad(total, [rows, matrix, image, kernel])
        made[0].flatten()[0].item()  # waits until the device is done

    times = trial.measure({"fp32": partial(passes, None), name: partial(passes, DTYPES[name])})
    tell([times["fp32"], times[name]])


def _speed(name: str, measured: Measured[str]) -> float:
    """How many times as fast as fp32."""
    return min(measured.times["fp32"]) / min(measured.times[name])
