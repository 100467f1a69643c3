"""What the arithmetic of one Nature update alone takes here, and what turning its bytes into floats takes: by the best form of each."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from benchmarks.peers.pixels_settings import ACTIONS, BATCH, CHANNELS, HIDDEN, KERNELS, SIZE, STACK, STRIDES
from freewheel.learners import package
from freewheel.machine import precision
from freewheel.machine.update_form import thread_counts
from freewheel.nets.inputs import FORMATS, Image, scaled, set_memory_format

ROUNDS = 7
CALLS = 5
# Something else may run for a while: blocks of rounds have a pause between them.
BLOCKS, PAUSE_S = 5, 0.4

Calls = dict[tuple[str, int], Callable[[], object]]


def arithmetic_s(cores: int) -> tuple[float, str]:
    """Seconds of the products and convolutions of one update (target forward, forward, backward), and the fastest form of them."""
    calls = {(name, threads): bare_update(FORMATS[name], BATCH) for name in FORMATS for threads in thread_counts(cores)}
    # The fastest block: whatever delays it would make the limit lower, and ours look better.
    (name, threads), seconds = min(_blocks(calls), key=lambda best: best[1])
    return seconds, f"{name}, {threads} threads"


def convert_s(cores: int, form: str = "eager") -> tuple[float, list[float]]:
    """Seconds in which the observations of one update become floats, as in that form of ours: the median of the blocks, and each of them.

    Each time after the products of an update, as in a learner: conversions alone gave their memory back after each call in some
    processes, and took 20 times as long for the page faults.
    """
    frames = torch.randint(0, 256, (BATCH, STACK + 1, SIZE, SIZE), dtype=torch.uint8)
    pair = frames[:, :STACK], frames[:, 1:]

    def convert(name: str, threads: int) -> Callable[[], object]:
        if form != "eager":
            return compiled_conversion(
                pair, threads, form == "mixed" and precision.choose("auto", "cpu").chosen == "bf16"
            )
        return lambda: [scaled(part.contiguous(memory_format=FORMATS[name])) for part in pair]

    # What is compiled has pixels side by side.
    names = FORMATS if form == "eager" else ["channels_last"]
    calls = {(name, threads): convert(name, threads) for name in names for threads in thread_counts(cores)}
    before = {(name, threads): bare_update(FORMATS[name], BATCH) for name, threads in calls}
    each = [seconds for _, seconds in _blocks(calls, before)]
    return statistics.median(each), each


def compiled_conversion(pair: tuple[Tensor, Tensor], threads: int, is_narrow: bool) -> Callable[[], object]:
    """As it is part of a compiled update."""
    image = Image(spaces.Box(0, 255, (SIZE, SIZE), np.uint8), STACK)
    set_memory_format(image, "channels_last")

    def function(*parts: Tensor) -> list[Tensor]:
        with torch.autocast("cpu", torch.bfloat16, enabled=is_narrow):
            return [image(part) for part in parts]

    usual = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        run, _ = package.compiled(function, pair)
    finally:
        torch.set_num_threads(usual)
    return lambda: run(*pair)


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


def _blocks(calls: Calls, before: Calls | None = None) -> list[tuple[tuple[str, int], float]]:
    """The best form of each block of rounds, and its seconds; what is called before each call does not count."""
    found = [_best(calls, before or {})]
    while len(found) < BLOCKS:
        time.sleep(PAUSE_S)
        found.append(_best(calls, before or {}))
    return found


def _best(calls: Calls, before: Calls) -> tuple[tuple[str, int], float]:
    """The form with the lowest median, in interleaved rounds."""
    usual = torch.get_num_threads()
    times: dict[tuple[str, int], list[float]] = {form: [] for form in calls}
    try:
        with torch.no_grad():
            for turn in range(ROUNDS + 1):
                for form, call in calls.items():
                    torch.set_num_threads(form[1])
                    seconds = _seconds(call, before.get(form))
                    if turn:  # the first allocates, and wakes threads
                        times[form].append(seconds)
    finally:
        torch.set_num_threads(usual)
    medians = {form: statistics.median(each) for form, each in times.items()}
    best = min(medians, key=lambda form: medians[form])
    return best, medians[best]


def _seconds(call: Callable[[], object], before: Callable[[], object] | None) -> float:
    taken = 0.0
    for _ in range(CALLS):
        if before is not None:
            before()
        begun = time.perf_counter()
        call()
        taken += time.perf_counter() - begun
    return taken / CALLS


def counts_of(threads: Sequence[int], cores: int) -> list[int]:
    """Those of the asked numbers of threads that have a core each; at least one."""
    return [count for count in threads if count <= cores] or [1]
