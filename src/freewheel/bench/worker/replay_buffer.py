"""One replay buffer behind JSON lines; `python -m freewheel.bench.worker.replay_buffer` is plain numpy arrays.

{"op": "open", "obs": "f32[8]", "capacity": 9999, "lanes": 1, "prioritized": false, "small": false}
    -> {"bytes": ...} of the filled buffer
{"op": "add", "seconds": 0.4} -> {"us": ...} per call of one row per lane
{"op": "uniform", "batch": 256, "seconds": 0.4} -> {"us": ...} per batch
{"op": "prioritized", "batch": 256, "seconds": 0.4} -> {"us": ...} per draw, gather and update
{"op": "close"} -> {}
"""

import gc
import importlib
import importlib.metadata
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .rows import Array, Block, Obs, episode, parse_obs, steps
from .serve import Message, die_with_parent, serve
from .window import Call, keep_freed_memory, measure_us, resident_bytes


@dataclass(frozen=True)
class Order:
    """Which buffer to build."""

    obs: Obs
    capacity: int
    lanes: int  # envs that add one row each per call
    prioritized: bool = False
    small: bool = False  # the form that takes the least memory instead of the least time


@dataclass(frozen=True)
class Opened:
    """A filled buffer: `add()` appends one row per lane, `sample(batch)` gives a training batch."""

    add: Call
    sample: Callable[[int], Any]


def open_numpy(order: Order) -> Opened:
    """Plain arrays and fancy indexing, without episodes, overwriting or priorities: the least that a Python buffer costs."""
    obs, block, rng = order.obs, episode(order.obs), np.random.default_rng(3)
    size, lanes = order.capacity - order.capacity % order.lanes, order.lanes
    columns: tuple[Array, ...] = (
        np.empty((size, *obs.shape), obs.dtype),
        np.empty(size, np.int64),
        np.empty(size, np.float32),
        np.empty((size, *obs.shape), obs.dtype),
        np.empty(size, np.bool_),
    )

    def as_tuple(rows: Block) -> tuple[Any, ...]:
        return rows.obs, rows.action, rows.reward, rows.next_obs, rows.terminated

    for start in range(0, size, len(block)):
        for column, values in zip(columns, as_tuple(block), strict=True):
            column[start : start + len(block)] = values[: size - start]
    take = itertools.cycle([as_tuple(s) for s in steps(block, lanes)]).__next__
    place = itertools.cycle([slice(k, k + lanes) for k in range(0, size, lanes)]).__next__

    def add() -> None:
        where = place()
        for column, values in zip(columns, take(), strict=True):
            column[where] = values

    def sample(batch: int) -> tuple[Any, ...]:
        index = rng.integers(0, size, batch)
        return tuple(column[index] for column in columns)

    return Opened(add, sample)


class Buffer:
    """The buffer that is open, at most one at a time."""

    def __init__(self, make: Callable[[Order], Opened]) -> None:
        self._make = make
        self._opened: Opened | None = None

    def open(self, message: Message) -> Message:
        self.close(message)
        obs = parse_obs(message["obs"])
        order = Order(obs, message["capacity"], message["lanes"], message["prioritized"], message["small"])
        episode(obs)  # the rows to fill with are no part of the buffer's memory
        before = resident_bytes()
        self._opened = self._make(order)
        gc.collect()
        return {"bytes": resident_bytes() - before}

    def close(self, _: Message) -> Message:
        self._opened = None
        gc.collect()
        return {}

    def add(self, message: Message) -> Message:
        return {"us": measure_us(self._current().add, message["seconds"])}

    def sample(self, message: Message) -> Message:
        draw, batch = self._current().sample, message["batch"]
        return {"us": measure_us(lambda: draw(batch), message["seconds"])}

    def _current(self) -> Opened:
        if self._opened is None:
            raise RuntimeError("no buffer is open")
        return self._opened


def serve_buffer(name: str, module: str, distribution: str, make: Callable[[Order], Opened]) -> None:
    """Import what the buffer needs, then answer until stdin closes."""
    die_with_parent()
    keep_freed_memory()
    importlib.import_module(module)
    buffer = Buffer(make)
    handlers = {
        "open": buffer.open,
        "close": buffer.close,
        "add": buffer.add,
        "uniform": buffer.sample,
        "prioritized": buffer.sample,
    }
    serve({"ready": name, "version": importlib.metadata.version(distribution)}, handlers)


if __name__ == "__main__":
    serve_buffer("numpy", "numpy", "numpy", open_numpy)
