"""Replay buffers that are measured beside ours, each in a process of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from freewheel.bench.child import Program, own_program
from freewheel.bench.harness import Bar
from freewheel.bench.processes import Processes
from freewheel.bench.replay_plan import Stage

# A buffer is filled at some GB/s when memory is free; the deadline allows for a machine that is busy.
OPEN_TIMEOUT_S = 120.0
OPEN_BYTES_PER_S = 50e6
# A window is exceeded by one call and its warm-up at most; the slowest call measured took 0.3 s.
MEASURE_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class BufferProgram:
    """What runs the buffer, and what it can do."""

    program: Program
    has_prioritized: bool = False
    is_baseline: bool = False  # shown beside ours, not counted in the ratio


NUMPY = BufferProgram(own_program("worker.replay_buffer"), is_baseline=True)


class Buffers(Processes):
    """The buffers beside ours; one that failed has no figures from then on."""

    def __init__(self, programs: Mapping[str, BufferProgram], closing: ExitStack, bar: Bar) -> None:
        super().__init__({name: one.program for name, one in programs.items()}, closing, bar)
        self.programs = dict(programs)

    def able(self, stage: Stage) -> list[str]:
        """Those that run and have this operation."""
        return [name for name in self.children if can_run(self.programs[name], stage)]

    def open(self, name: str, stage: Stage, *, small: bool = False) -> float | None:
        """Bytes of the filled buffer."""
        order = {"op": "open", "obs": stage.obs.name, "capacity": stage.capacity, "lanes": stage.num_envs}
        order.update(prioritized=stage.op == "prioritized", small=small)
        answer = self.ask(name, order, OPEN_TIMEOUT_S + stage.other_bytes / OPEN_BYTES_PER_S)
        return None if answer is None else float(answer["bytes"])

    def close(self, name: str) -> None:
        self.ask(name, {"op": "close"}, MEASURE_TIMEOUT_S)

    def measure(self, name: str, stage: Stage, batch: int, seconds: float) -> float:
        order = {"op": stage.op, "batch": batch, "seconds": seconds}
        answer = self.ask(name, order, MEASURE_TIMEOUT_S + 3 * seconds)
        return math.nan if answer is None else stage.figure(answer["us"], batch)


def can_run(program: BufferProgram, stage: Stage) -> bool:
    return stage.op != "prioritized" or program.has_prioritized
