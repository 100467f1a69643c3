"""Trial: the precision of forward and backward passes. Some CPUs announce bf16 and crash on it, so a throwaway process tries first."""

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
# Lower precision needs a clear gain: measured times vary by a few percent.
LEAST_GAIN = 1.1


def choose(asked: str, device: str) -> Choice[str]:
    """The precision `asked` for if it runs here, the fastest for "auto", fp32 otherwise."""
    if asked == "fp32":
        return Choice(asked)
    each = {name: tried(name, device) for name in (DTYPES if asked == "auto" else [asked])}
    speeds = {n: min(found.times["fp32"]) / min(found.times[n]) for n, found in each.items() if not found.failure}
    times = {"fp32": [1.0], **{name: [1 / speed] for name, speed in speeds.items()}}
    chosen = trial.choose(times, LEAST_GAIN) if asked == "auto" else asked if asked in speeds else "fp32"
    said = ", ".join(
        f"{name} "
        + (f"is {speeds[name]:.2f} times as fast as fp32" if name in speeds else f"does not run here ({found.failure})")
        + found.suffix
        for name, found in each.items()
    )
    return Choice(chosen, f"Training in {chosen}{', as set' if chosen == asked else ''}: {said}.")


def why_not(name: str, device: str) -> str:
    """Why this machine cannot compute in this precision; empty if it can."""
    return tried(name, device).failure


def tried(name: str, device: str) -> Measured[str]:
    """Seconds of the same passes in fp32 and in this precision, from the cache or a throwaway process."""
    candidates = ["fp32", name]
    key = cache.key_of("precision", name, device, torch.cuda.get_device_name() if device == "cuda" else "")
    known = trial.recall(key, candidates)
    if known is not None and (known.failure or all(known.times.values())):
        return known
    report = trial.throwaway(time_passes, name, device, timeout_s=TIMEOUT_S)
    times = dict(zip(candidates, report.told[0] if report.told else [[], []], strict=True))
    measured = Measured(times, report.failure)
    # SIGKILL comes from outside, often for lack of memory: it is no failure of the precision.
    if not report.failure or ((report.exit_code or 0) < 0 and report.exit_code != -signal.SIGKILL):
        trial.remember(key, measured)
    return measured


def time_passes(name: str, device: str, tell: Callable[[Any], None]) -> None:
    """Tells the seconds of a matrix product and a convolution with their gradients, in fp32 and in this precision."""
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
