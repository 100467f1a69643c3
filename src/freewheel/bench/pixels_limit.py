"""What the arithmetic of one Nature update alone takes here, and what turning its bytes into floats takes: by the best form of each."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from freewheel.bench.peers.pixels_settings import ACTIONS, BATCH, CHANNELS, HIDDEN, KERNELS, SIZE, STACK, STRIDES
from freewheel.learners.forms import thread_counts
from freewheel.nets.inputs import FORMATS, scaled

ROUNDS = 7
CALLS = 5


def arithmetic_s(cores: int) -> tuple[float, str]:
    """Seconds of the products and convolutions of one update (target forward, forward, backward), and the fastest form of them."""
    calls = {(name, threads): bare_update(FORMATS[name], BATCH) for name in FORMATS for threads in thread_counts(cores)}
    best = _best(calls)
    return best[1], f"{best[0][0]}, {best[0][1]} threads"


def convert_s(cores: int) -> float:
    """Seconds in which the observations of one update become floats."""
    frames = torch.randint(0, 256, (BATCH, STACK + 1, SIZE, SIZE), dtype=torch.uint8)
    pair = frames[:, :STACK], frames[:, 1:]

    def convert(name: str) -> Callable[[], object]:
        return lambda: [scaled(part.contiguous(memory_format=FORMATS[name])) for part in pair]

    return _best({(name, threads): convert(name) for name in FORMATS for threads in thread_counts(cores)})[1]


def bare_update(memory_format: torch.memory_format, rows: int) -> Callable[[], object]:
    """No activation, no loss, no optimiser: only what multiplies."""
    convs: list[tuple[Tensor, Tensor, int]] = []  # input, weights, stride
    x = torch.rand(rows, STACK, SIZE, SIZE).contiguous(memory_format=memory_format)
    for out, kernel, stride in zip(CHANNELS, KERNELS, STRIDES, strict=True):
        weight = torch.rand(out, x.shape[1], kernel, kernel).contiguous(memory_format=memory_format)
        convs.append((x, weight, stride))
        x = torch.conv2d(x, weight, stride=stride)
    features = torch.rand(rows, x[0].numel())
    linears = [
        (features, torch.rand(HIDDEN, features.shape[1])),
        (torch.rand(rows, HIDDEN), torch.rand(ACTIONS, HIDDEN)),
    ]
    outputs = [torch.conv2d(x, weight, stride=stride) for x, weight, stride in convs]
    ends = [x @ weight.T for x, weight in linears]

    def forward() -> None:
        for x, weight, stride in convs:
            torch.conv2d(x, weight, stride=stride)
        for x, weight in linears:
            x @ weight.T

    def call() -> None:
        forward()
        forward()
        for (x, weight), out in zip(linears, ends, strict=True):
            out @ weight
            out.T @ x
        for i, ((x, weight, stride), out) in enumerate(zip(convs, outputs, strict=True)):
            torch.ops.aten.convolution_backward(
                out, x, weight, None, [stride, stride], [0, 0], [1, 1], False, [0, 0], 1, [i > 0, True, False]
            )

    return call


def _best(calls: dict[tuple[str, int], Callable[[], object]]) -> tuple[tuple[str, int], float]:
    """The form with the lowest median, in interleaved rounds."""
    before = torch.get_num_threads()
    times: dict[tuple[str, int], list[float]] = {form: [] for form in calls}
    try:
        with torch.no_grad():
            for turn in range(ROUNDS + 1):
                for form, call in calls.items():
                    torch.set_num_threads(form[1])
                    seconds = _seconds(call)
                    if turn:  # the first allocates
                        times[form].append(seconds)
    finally:
        torch.set_num_threads(before)
    medians = {form: statistics.median(each) for form, each in times.items()}
    best = min(medians, key=lambda form: medians[form])
    return best, medians[best]


def _seconds(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - begun) / CALLS


def counts_of(threads: Sequence[int], cores: int) -> list[int]:
    """Those of the asked numbers of threads that have a core each; at least one."""
    return [count for count in threads if count <= cores] or [1]
