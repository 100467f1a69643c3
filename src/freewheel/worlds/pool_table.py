"""What a pool and its workers share: one segment with a place for every lane, and the counters that say what is new in it.

Each lane has one owner at a time: its thread in a worker from the moment its action was sent until it is announced, the pool
otherwise. Which lanes changed hands stands in two rings per thread; a counter for each says how far its ring is filled. The counter is
moved after the ring and the lanes were written, and looked at before they are read.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from freewheel.memory.counter import Counters
from freewheel.memory.segment import Segment
from freewheel.spec import Field
from freewheel.worlds.world import Array, Columns, Obs

READY = 0  # index of the counter that all threads add announced lanes to; the pool sleeps on it
ALARM = 1 << 32  # what a thread adds to it that failed: reaches whatever number the pool waits for
_ALIGN = 64


@dataclass(frozen=True)
class Column:
    """One array with a row per lane."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class Table:
    """Hand it to workers as a `Process` argument. `fields` are the row's, `spans` the lanes of each thread, one after the other."""

    def __init__(self, fields: Sequence[Field], spans: Sequence[range]) -> None:
        self.fields, self.spans = tuple(fields), tuple(spans)
        num_bytes = _end(self._columns())
        self._segment = Segment.create(num_bytes, "the pool's lanes", "Take fewer world.lanes.")
        self.counters = Counters(1 + 2 * len(spans))
        self._open()

    def __getstate__(self) -> tuple[Any, ...]:
        return self.fields, self.spans, self._segment, self.counters

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.fields, self.spans, self._segment, self.counters = state
        self._open()

    @staticmethod
    def sent(thread: int) -> int:
        """Index of the counter of lanes that were sent to this thread."""
        return 1 + 2 * thread

    @staticmethod
    def done(thread: int) -> int:
        """Index of the counter of lanes that this thread announced."""
        return 2 + 2 * thread

    def _columns(self) -> list[tuple[Column, int]]:
        lanes, threads = self.spans[-1].stop, len(self.spans)
        per_lane = [
            *(Column(field.name, field.dtype, field.shape) for field in self.fields),
            *(Column(f"final/{field.name}", field.dtype, field.shape) for field in self.fields if field.is_observation),
            *(Column(name, "float32", ()) for name in ("reward", "final_reward")),
            Column("first", "bool", ()),
            Column("ends", "uint8", ()),
            *(Column(name, "int64", ()) for name in ("inbox", "outbox")),
        ]
        per_thread = [Column("failed", "bool", ()), Column("beats", "int64", ())]
        return [
            *((c, lanes) for c in per_lane),
            *((c, threads) for c in per_thread),
            (Column("closing", "bool", ()), 1),
        ]

    def _open(self) -> None:
        block = mmap.mmap(self._segment.core.fd, self._segment.num_bytes)
        arrays: dict[str, Array] = {}
        at = 0
        for column, count in self._columns():
            flat = np.frombuffer(block, column.dtype, count * _size(column), at)
            arrays[column.name] = flat.reshape(count, *column.shape)
            at = _next(at, column, count)
        names = [field.name for field in self.fields if field.is_observation]
        self.obs: Obs = {name: arrays[name] for name in names}
        self.final: Obs = {name: arrays[f"final/{name}"] for name in names}
        self.actions: Columns = {field.name: arrays[field.name] for field in self.fields if not field.is_observation}
        self.reward, self.final_reward = arrays["reward"], arrays["final_reward"]
        self.first, self.ends = (
            arrays["first"],
            arrays["ends"],
        )  # ends: the sum of world's TERMINATED, TRUNCATED and GOES_ON, or 0
        # One ring per thread, as long as it has lanes: no lane can be in it twice.
        self.inboxes = [arrays["inbox"][span.start : span.stop] for span in self.spans]
        self.outboxes = [arrays["outbox"][span.start : span.stop] for span in self.spans]
        self.failed, self.beats, self.closing = arrays["failed"], arrays["beats"], arrays["closing"]


def split(count: int, parts: int) -> list[range]:
    """As even as can be; the first ones have one more."""
    each, rest = divmod(count, parts)
    ends = [(i + 1) * each + min(i + 1, rest) for i in range(parts)]
    return [range(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]


def push(ring: Array, at: int, lanes: Array) -> None:
    """Writes into a ring from position `at` on."""
    begin, count = at % len(ring), len(lanes)
    if begin + count <= len(ring):
        ring[begin : begin + count] = lanes
    else:
        ring[(np.arange(begin, begin + count)) % len(ring)] = lanes


def pull(ring: Array, at: int, until: int) -> Array:
    """What stands in a ring from position `at` up to `until`."""
    begin, count = at % len(ring), until - at
    if begin + count <= len(ring):
        found: Array = ring[begin : begin + count].copy()
        return found
    return ring.take(range(begin, begin + count), mode="wrap")


def _size(column: Column) -> int:
    return int(np.prod(column.shape, dtype=np.int64))


def _next(at: int, column: Column, count: int) -> int:
    used = at + count * _size(column) * np.dtype(column.dtype).itemsize
    return -(-used // _ALIGN) * _ALIGN


def _end(columns: Sequence[tuple[Column, int]]) -> int:
    at = 0
    for column, count in columns:
        at = _next(at, column, count)
    return at
