"""The form of an update: precision, memory format and threads. What "auto" means is tried with the real network, and remembered.

Without a trial images take channels_last: the bare products of a Nature update took a quarter less CPU time so, on one thread.
"""

from __future__ import annotations

import hashlib
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import nn

from freewheel.config import LearnerConfig
from freewheel.learners import precision, remembered
from freewheel.learners.package import cpu
from freewheel.nets.inputs import has_images

# Another form has to be this much faster than the one that is taken without a trial.
LEAST_GAIN = 1.05
# Eager gradients are tried, and compiled ones gain more from pixels side by side: in bf16 a Nature gradient took 14.0 ms channel by
# channel and 15.4 ms so, but 18.7 ms and 12.5 ms when the update was compiled.
LEAST_GAIN_OF_FORMAT = 1.25
# Machines and networks that are remembered, the newest.
MOST_KEPT = 200
FILE = "forms"


@dataclass(frozen=True)
class Form:
    """How the passes of an update are made. The results are the same but for rounding."""

    precision: str = "fp32"
    memory_format: str = "contiguous"
    threads: int = 1

    def __str__(self) -> str:
        return f"{self.precision}, {self.memory_format}, {self.threads} thread{'s' if self.threads > 1 else ''}"


def settled(config: LearnerConfig, net: nn.Module, cores: int, device: str = "cpu", chosen: str = "fp32") -> Form:
    """The form that is taken without a trial, with at most so many threads; `chosen` is the precision."""
    is_image = has_images(net)
    name: str = config.memory_format
    if name == "auto":
        name = "channels_last" if is_image else "contiguous"
    return Form(chosen, name, config.threads or (cores if is_image and device == "cpu" else 1))


def settled_here(config: LearnerConfig, net: nn.Module, cores: int) -> Form:
    """The same for a run in this very process, whose threads may be of the kind that spins: then there is one."""
    return settled(config, net, cores if waits_passively() else 1)


def candidates(config: LearnerConfig, net: nn.Module, cores: int, device: str, chosen: str = "fp32") -> list[Form]:
    """What is worth a trial, the settled form first; it alone where nothing is left open."""
    first = settled(config, net, cores, device, chosen)
    if not has_images(net):
        return [first]
    formats = ["channels_last", "contiguous"] if config.memory_format == "auto" else [first.memory_format]
    threads = thread_counts(cores) if not config.threads and device == "cpu" else [first.threads]
    precisions = [chosen]
    if config.precision == "auto":
        runs = [name for name in precision.TRIED if "why" not in precision.tried(name, device)]
        precisions = ["fp32", *runs]  # last what may still die of a network's own operations
    found = [Form(p, f, t) for p in precisions for f in formats for t in threads]
    return [first, *(form for form in found if form != first)]


def thread_counts(cores: int) -> list[int]:
    """1, 2, 4 and so on, and all cores."""
    return sorted({cores, *(2**i for i in range(cores.bit_length()) if 2**i <= cores)})


def waits_passively() -> bool:
    """Whether torch's threads sleep while they wait: those that spin stop each other as soon as a core is shared."""
    return os.environ.get("OMP_WAIT_POLICY", "").lower() == "passive"


def fastest(times: Mapping[Form, Sequence[float]], may_compile: bool = True) -> Form:
    """By the median; the first, unless another one is clearly faster. What may be compiled later has pixels side by side."""
    medians = {form: statistics.median(each) for form, each in times.items() if each}
    first, best = next(iter(times)), min(medians, key=lambda form: medians[form])
    beside = replace(best, memory_format="channels_last")
    if may_compile and medians.get(beside, math.inf) < LEAST_GAIN_OF_FORMAT * medians[best]:
        best = beside
    return best if first not in medians or medians[first] >= LEAST_GAIN * medians[best] else first


def sentence(times: Mapping[Form, Sequence[float]], died: str = "") -> str:
    """What was measured, in one line."""
    said = [f"{form} {1e3 * statistics.median(each):.3g} ms" for form, each in times.items() if each]
    missing = [f"{form} was not tried" for form, each in times.items() if not each]
    if died and missing:
        missing = [f"{missing[0].removesuffix(' was not tried')} is not available here ({died})", *missing[1:]]
    return "; ".join(said + missing)


def key_of(net: nn.Module, rows: int, forms: Sequence[Form], obs: Any, device: str) -> str:
    """Equal for equal work on equal machines."""
    shapes = [(name, tuple(tensor.shape)) for name, tensor in net.named_parameters()]
    what = [cpu(), os.cpu_count(), torch.__version__, device, shapes, rows, repr(obs), [asdict(form) for form in forms]]
    return hashlib.sha256(repr(what).encode()).hexdigest()[:24]


def recall(key: str) -> dict[str, Any] | None:
    """What `remember` kept under the key."""
    found = remembered.read(FILE).get(key)
    return found if isinstance(found, dict) else None


def remember(key: str, found: Mapping[str, Any]) -> None:
    """Beside what is there already."""
    known = remembered.read(FILE)
    merged = {**(known.pop(key, None) or {}), **found}
    remembered.write(FILE, dict(list({**known, key: merged}.items())[-MOST_KEPT:]))
