"""Trial: the form of an update, which is its precision, memory format and threads. "auto" is measured with the run's network.

Without a trial images use channels_last, with which a Nature update took a quarter less CPU time on one thread.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import nn

from freewheel.config import LearnerConfig
from freewheel.machine import cache, precision, trial
from freewheel.machine.trial import Measured
from freewheel.nets.inputs import has_images

# Another form must be this many times as fast as the one that is used without a trial.
LEAST_GAIN = 1.05
# The trial measures eager gradients, but compiled ones gain more from channels_last: in bf16 a Nature gradient took 14.0 ms contiguous
# and 15.4 ms channels_last; compiled, it took 18.7 ms and 12.5 ms.
LEAST_GAIN_OF_FORMAT = 1.25
# With fewer updates, a faster form saves less time than the trial takes.
LEAST_UPDATES = 2_000


@dataclass(frozen=True)
class Form:
    """How an update computes its passes. Results are equal up to rounding."""

    precision: str = "fp32"
    memory_format: str = "contiguous"
    threads: int = 1

    def __str__(self) -> str:
        return f"{self.precision}, {self.memory_format}, {self.threads} thread{'s' if self.threads > 1 else ''}"


def settled(config: LearnerConfig, net: nn.Module, cores: int, device: str = "cpu", chosen: str = "fp32") -> Form:
    """The form without a trial, with at most `cores` threads; `chosen` is the precision."""
    is_image = has_images(net)
    name: str = config.memory_format
    if name == "auto":
        name = "channels_last" if is_image else "contiguous"
    return Form(chosen, name, config.threads or (cores if is_image and device == "cpu" else 1))


def settled_here(config: LearnerConfig, net: nn.Module, cores: int) -> Form:
    """The form without a trial for a run in this process: one thread if torch's threads spin while they wait.

    Threads that spin block each other if they share a core.
    """
    waits_passively = os.environ.get("OMP_WAIT_POLICY", "").lower() == "passive"
    return settled(config, net, cores if waits_passively else 1)


def candidates(config: LearnerConfig, net: nn.Module, cores: int, device: str, chosen: str = "fp32") -> list[Form]:
    """The forms worth a trial, the one without a trial first; only that one if the settings leave no choice."""
    first = settled(config, net, cores, device, chosen)
    if not has_images(net):
        return [first]
    formats = ["channels_last", "contiguous"] if config.memory_format == "auto" else [first.memory_format]
    threads = thread_counts(cores) if not config.threads and device == "cpu" else [first.threads]
    precisions = [chosen]
    if config.precision == "auto":
        # fp32 comes first: operations of this network may still crash in the others.
        precisions = ["fp32", *(name for name in precision.DTYPES if not precision.why_not(name, device))]
    found = [Form(p, f, t) for p in precisions for f in formats for t in threads]
    return [first, *(form for form in found if form != first)]


def thread_counts(cores: int) -> list[int]:
    """1, 2, 4 and so on, and all cores."""
    return sorted({cores, *(2**i for i in range(cores.bit_length()) if 2**i <= cores)})


def fastest(times: Mapping[Form, Sequence[float]], may_compile: bool = True) -> Form:
    """The first form, unless the median of another one is clearly faster. Updates that may be compiled prefer channels_last."""
    medians = {form: statistics.median(each) for form, each in times.items() if each}
    best = trial.choose(times, summary=statistics.median)
    last = replace(best, memory_format="channels_last")
    if may_compile and medians.get(last, math.inf) < LEAST_GAIN_OF_FORMAT * medians[best]:
        best = last
    first = next(iter(times))
    return trial.choose({first: times[first], best: times[best]}, LEAST_GAIN, statistics.median)


def sentence(measured: Measured[Form]) -> str:
    """All forms with their times. If the trial failed, the first form without a time made it fail."""
    said = [f"{form} {1e3 * statistics.median(each):.3g} ms" for form, each in measured.times.items() if each]
    missing = [str(form) for form, each in measured.times.items() if not each]
    if missing and measured.failure:
        said.append(f"{missing.pop(0)} does not run here ({measured.failure})")
    return "; ".join(said + [f"{form} was not tried" for form in missing])


def key_of(net: nn.Module, rows: int, forms: Sequence[Form], obs: Any, device: str) -> str:
    """Equal for equal networks, batches and candidates on equal machines."""
    shapes = [(name, tuple(tensor.shape)) for name, tensor in net.named_parameters()]
    return cache.key_of(device, shapes, rows, repr(obs), [asdict(form) for form in forms])
