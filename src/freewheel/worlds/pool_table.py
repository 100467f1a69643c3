"""Memory that a pool shares with its workers: one segment with a place for every lane, and counters that say what is new in it.

Each lane has one owner at a time: its thread in a worker from the moment its action was sent until the thread announces it, and the
pool otherwise. Two rings per thread list the lanes that changed hands, and a counter for each says how far its ring is filled. The
writer moves the counter after it wrote the ring and the lanes; the reader looks at the counter before it reads them.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from freewheel.memory.counter import Counters
from freewheel.memory.segment import Segment, Shared
from freewheel.spec import Field
from freewheel.worlds.world import Array, Columns, Obs

ALARM = 1 << 32  # a thread that fails adds this to `ready`, which then exceeds any number the pool waits for
_ALIGN = 64


class Table(Shared):
    """Pass it to workers as a `Process` argument. `fields` are the fields of a row, `spans` the neighbouring lanes of each thread."""

    handed = ("fields", "spans", "counters", "segment")

    def __init__(self, fields: Sequence[Field], spans: Sequence[range]) -> None:
        self.fields, self.spans, self.counters = tuple(fields), tuple(spans), Counters(1 + 2 * len(spans))
        self.segment = Segment.create(self._layout().itemsize, "the pool's lanes", "Use fewer world.lanes.")
        self._open()

    def _layout(self) -> np.dtype[Any]:
        """All arrays as one record. Each begins a cache line of its own."""
        lanes, threads = self.spans[-1].stop, len(self.spans)
        arrays: dict[str, tuple[str, tuple[int, ...]]] = {f.name: (f.dtype, (lanes, *f.shape)) for f in self.fields}
        arrays |= {f"final/{f.name}": arrays[f.name] for f in self.fields if f.is_observation}
        arrays |= dict.fromkeys(("reward", "final_reward"), ("float32", (lanes,)))
        arrays |= {"first": ("bool", (lanes,)), "ends": ("uint8", (lanes,))}
        arrays |= dict.fromkeys(("inbox", "outbox"), ("int64", (lanes,)))
        arrays |= {"failed": ("bool", (threads,)), "beats": ("int64", (threads,)), "closing": ("bool", (1,))}
        sizes = [-(-np.dtype(form).itemsize // _ALIGN) * _ALIGN for form in arrays.values()]
        *offsets, end = accumulate(sizes, initial=0)
        return np.dtype({"names": [*arrays], "formats": [*arrays.values()], "offsets": offsets, "itemsize": end})

    def _open(self, format_at: int | None = None) -> None:
        arrays = np.frombuffer(mmap.mmap(self.segment.core.fd, self.segment.num_bytes), self._layout(), 1)[0]
        names = [field.name for field in self.fields if field.is_observation]
        self.obs: Obs = {name: arrays[name] for name in names}
        self.final: Obs = {name: arrays[f"final/{name}"] for name in names}
        self.actions: Columns = {field.name: arrays[field.name] for field in self.fields if not field.is_observation}
        self.reward, self.final_reward, self.first = arrays["reward"], arrays["final_reward"], arrays["first"]
        self.ends = arrays["ends"]  # the sum of TERMINATED, TRUNCATED and GOES_ON, or 0
        # One ring per thread with a place for each of its lanes: a lane is never in it twice.
        self.inboxes = [arrays["inbox"][span.start : span.stop] for span in self.spans]
        self.outboxes = [arrays["outbox"][span.start : span.stop] for span in self.spans]
        self.failed, self.beats, self.closing = arrays["failed"], arrays["beats"], arrays["closing"]
        # Lanes announced by all threads, on which the pool sleeps; lanes sent to each thread, and lanes that it announced.
        self.ready, *parts = map(self.counters.part, range(self.counters.num))
        self.sent, self.done = parts[::2], parts[1::2]


def split(count: int, parts: int) -> list[range]:
    """As evenly as possible; the first parts have one more."""
    each, rest = divmod(count, parts)
    ends = [(i + 1) * each + min(i + 1, rest) for i in range(parts)]
    return [range(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]


def push(ring: Array, at: int, lanes: Array) -> None:
    """Writes into a ring, from position `at`."""
    begin, count = at % len(ring), len(lanes)
    if begin + count <= len(ring):
        ring[begin : begin + count] = lanes
    else:
        ring[(np.arange(begin, begin + count)) % len(ring)] = lanes


def pull(ring: Array, at: int, until: int) -> Array:
    """Reads a ring from position `at` up to `until`."""
    begin, count = at % len(ring), until - at
    if begin + count <= len(ring):
        found: Array = ring[begin : begin + count].copy()
        return found
    return ring.take(range(begin, begin + count), mode="wrap")
