"""`freewheel bench update --algo NAME`: one update of any algorithm on one core, built as a run of it builds it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from freewheel.bench.harness import OURS, Bar, Case
from freewheel.bench.worker.window import measure_us
from freewheel.config import assemble, find_algo
from freewheel.config.assemble import known
from freewheel.machine.cores import num_cores
from freewheel.memory.nested import leaves
from freewheel.run.layout import choose
from freewheel.run.plan import Setup
from freewheel.run.runtime import make_sequential

COMPILED = "compiled"


def settings_of(algo: str, rows: int, is_compiled: bool) -> dict[str, Any]:
    """Where the algorithm has a replay, its batches have `rows`; the batches of others are as their own settings say."""
    settings: dict[str, Any] = {
        "algo": algo,
        "runtime": "sequential",
        "learner.compile": "on" if is_compiled else "off",
        "learner.threads": torch.get_num_threads(),  # as many as the process was given
    }
    if "replay.warmup_rows" in known(find_algo(algo).Settings):
        # A compiled call draws the rows of several updates at once.
        settings |= {"learner.batch_size": rows, "replay.warmup_rows": 8 * rows, "replay.rows": max(100 * rows, 10_000)}
    return settings


def open_update(
    algo: str, env: str, rows: int, is_compiled: bool, closing: ExitStack
) -> tuple[Callable[[], Tensor], int, int]:
    """A call that makes updates and gives their losses, how many it makes, and the rows of each."""
    config = assemble(env, settings_of(algo, rows, is_compiled), preset="none")
    runtime = make_sequential(Setup(config, env, choose(config, num_cores())))
    closing.callback(runtime.close)
    (learner,) = runtime.learners
    batch, draws = learner.memory.example()
    generator = torch.Generator().manual_seed(0)
    for tensor in leaves(batch):
        if tensor.is_floating_point():
            tensor.uniform_(generator=generator)
    hyper = {"lr": config.learner.lr, **learner.algo.hyper(0.0)}
    return lambda: learner.update(batch, draws, hyper).loss, learner.update.unrolled, learner.algo.batch_rows


def measure(
    algo: str, env: str, batches: Sequence[int], forms: Sequence[str], rounds: int, seconds: float, bar: Bar
) -> list[Case]:
    """A case for each form and number of rows, in interleaved rounds."""
    cases: dict[str, tuple[Case, Callable[[], Tensor], int]] = {}
    with ExitStack() as closing:
        for rows in batches:
            for form in forms:
                bar.show(f"{OURS} {form}, {algo}, batch {rows}: first updates")
                call, together, own_rows = open_update(algo, env, rows, form == COMPILED, closing)
                name = f"update/{algo}/{form}/{own_rows}"
                case = Case(name, "us", extra={"algo": algo, "env": env, "updates_per_call": together})
                cases.setdefault(name, (case, call, together))
        for _ in range(rounds):
            for case, call, together in cases.values():
                bar.show(case.name)
                case.ours.append(measure_us(call, seconds) / together)
                bar.advance()
    return [case for case, _, _ in cases.values()]
