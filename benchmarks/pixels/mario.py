"""Workload B's update: batches in 4 parts through a network of 4.8 million numbers, from a plain loop to our fastest form."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from benchmarks.peers import pixels_plain
from benchmarks.peers import pixels_settings as same
from benchmarks.peers.pixels_nets import same_numbers
from benchmarks.pixels.limit import counts_of
from benchmarks.pixels.settings import PixelsSettings
from freewheel.algos.make import make_algo
from freewheel.bench.harness import Bar, Case, median, progress
from freewheel.bench.update import empty_compile_cache
from freewheel.config import assemble
from freewheel.contracts import Spaces
from freewheel.errors import FreewheelError
from freewheel.learners.update import Update
from freewheel.machine import precision

PLAIN = "plain"
# The same update but for the order of its additions.
LOSS_TOLERANCE = 1e-3
# bf16 has 8 bits where fp32 has 24.
MIXED, MIXED_TOLERANCE = "mixed", 2e-2

Call = Callable[[], Tensor]  # makes one update and gives its loss


def case(settings: PixelsSettings, cores: int, goal: float) -> Case:
    """Updates per second: each step that was taken, with each number of threads; ours is the best of them."""
    batch = pixels_plain.make_batch(settings.rows)
    threads = counts_of(settings.threads, cores)
    first_s: dict[str, float] = {}
    makers: dict[str, Callable[[int], Call]] = {
        PLAIN: lambda _: pixels_plain.make_update(batch),
        "eager": lambda _: ours(batch, "contiguous"),
        "channels_last": lambda _: ours(batch, "channels_last"),
        "compiled": lambda count: ours(batch, "channels_last", is_compiled=True, threads=count),
    }
    # Where it is faster than fp32, as --precision auto would find; a machine may also die of it.
    if MIXED in settings.forms and precision.choose("auto", "cpu").chosen == "bf16":
        makers[MIXED] = lambda count: ours(batch, "channels_last", is_compiled=True, threads=count, numbers="bf16")
    total = (settings.rounds + 1) * len(makers) * len(threads)
    with progress("bench pixels: mario", total) as bar, empty_compile_cache():
        ways = {(way, count): (make, count) for count in threads for way, make in makers.items()}
        updates = {key: _first(key, make, count, first_s, bar) for key, (make, count) in ways.items()}
        _check_same({_name(*key): loss for key, (_, loss) in updates.items()})
        figures: dict[tuple[str, int], list[float]] = {key: [] for key in updates}
        for _ in range(settings.rounds):
            for (way, count), (update, _) in updates.items():
                bar.show(f"mario {_name(way, count)}")
                with _threads(count):
                    begun = time.perf_counter()
                    update()
                    figures[way, count].append(1 / (time.perf_counter() - begun))
                bar.advance()
    return _case(settings.rows, figures, first_s, goal)


def _case(rows: int, figures: dict[tuple[str, int], list[float]], first_s: dict[str, float], goal: float) -> Case:
    """The baseline is the plain loop with its best number of threads."""
    best = max((key for key in figures if key[0] != PLAIN), key=lambda key: median(figures[key]))
    plain = max((key for key in figures if key[0] == PLAIN), key=lambda key: median(figures[key]))
    made = Case(f"pixels/mario/{rows}", "updates/s", figures[best], goal=goal)
    made.baselines = {_name(*key): each for key, each in figures.items()}
    made.baseline = _name(*plain)
    base = median(figures[plain])
    steps = {_name(*key): round(median(each) / base, 3) for key, each in figures.items()}
    made.extra = {"best": _name(*best), "times_the_plain_loop": steps, "first_call_s": first_s}
    said = ", ".join(f"{name} {times:.2f}x" for name, times in steps.items())
    made.extra["notes"] = [f"{made.name}: against {_name(*plain)}: {said}; ours is {_name(*best)}."]
    return made


def ours(
    batch: pixels_plain.Batch, memory_format: str, *, is_compiled: bool = False, threads: int = 1, numbers: str = "fp32"
) -> Call:
    """Our update as the learner makes it."""
    given = {
        "world.stack": same.MARIO_STACK,
        "net.hidden": (same.HIDDEN,),
        "net.norm": "batch_conv",
        "net.conv_bias": False,
        "net.init": "he",
        "q.gamma": same.GAMMA,
        "replay.warmup_rows": max(len(batch["reward"]), 1_000),
        "learner.batch_size": len(batch["reward"]),
        "learner.accumulate": same.MARIO_PARTS,
        "learner.optimizer": "adamw",
        "learner.weight_decay": same.MARIO_DECAY,
        "learner.clip_norm": same.MARIO_CLIP,
        "learner.target_every_updates": 10**9,
    }
    config = assemble("mario", given, preset="none")
    box = spaces.Box(0, 255, (same.MARIO_SIZE, same.MARIO_SIZE), np.uint8)
    algo = make_algo(config, Spaces(box, spaces.Discrete(same.MARIO_ACTIONS), 1))
    same_numbers(algo.net)
    update = Update(algo, config.learner, memory_format=memory_format, precision=numbers)
    if is_compiled:
        with _threads(threads):
            update.compile(batch, {})
    return lambda: update(batch, {}, {"lr": same.MARIO_LR}).loss


def _first(
    key: tuple[str, int], make: Callable[[int], Call], count: int, first_s: dict[str, float], bar: Bar
) -> tuple[Call, float]:
    """The way, past its first update, and that one's loss."""
    bar.show(f"mario {_name(*key)}: first update")
    begun = time.perf_counter()
    with _threads(count):
        update = make(count)
        loss = float(update())
    first_s[_name(*key)] = round(time.perf_counter() - begun, 2)
    bar.advance()
    return update, loss


def _check_same(losses: dict[str, float]) -> None:
    first = next(iter(losses.values()))

    def is_near(name: str, loss: float) -> bool:
        return abs(loss - first) <= (MIXED_TOLERANCE if name.startswith(MIXED) else LOSS_TOLERANCE) * abs(first)

    if not all(is_near(*one) for one in losses.items()):  # NaN is never near
        said = ", ".join(f"{name} {loss:.6f}" for name, loss in losses.items())
        raise FreewheelError(f"mario: the losses of the first update are {said}. They do not make the same update.")


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _name(way: str, count: int) -> str:
    return f"{way}/{count}"
