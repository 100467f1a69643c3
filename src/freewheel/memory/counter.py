"""Counters that processes wait for: they sleep until a count is reached, and cost nothing meanwhile."""

from __future__ import annotations

from freewheel import _core
from freewheel.errors import ConfigError
from freewheel.memory.segment import Segment, Shared


class Counters(Shared):
    """`num` 64-bit counts in shared memory."""

    handed = ("num", "segment")

    def __init__(self, num: int, *, start: int = 0) -> None:
        if num < 1:
            raise ConfigError(f"num={num} counters: there must be at least 1.")
        self.num = num
        self.segment = Segment.create(num * _core.Counter.num_bytes(), "the counters")
        self._open(start)

    def _open(self, format_at: int | None = None) -> None:
        self._cores = [_core.Counter.make(self.segment.core, index, format_at=format_at) for index in range(self.num)]

    def part(self, index: int) -> _core.Counter:
        """One of them by itself, for loops in which a call more is felt."""
        return self._cores[index]

    def value(self, index: int) -> int:
        return self._cores[index].value

    def add(self, index: int, n: int = 1) -> None:
        """Adds and wakes those whose count is reached. Never blocks."""
        self._cores[index].add(n)

    def wait(self, index: int, target: int, timeout_s: float) -> bool:
        """Sleeps until the count has reached the target; False when the time is over first. Ctrl-C ends it."""
        return self._cores[index].wait(target % 2**64, timeout_s)
