"""Pins the learner to its own core, if other roles delay it.

The kernel counts how long a thread was ready to run but had no core. A learner that always has work and is delayed that way gets its
own core: its thread stays there, and the other roles use the rest. Pinning ends if it does not help, or if the learner has to wait
for roles that lost the core.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, NamedTuple

Pin = Literal["auto", "on", "off"]
WINDOW_S = 1.0
HELD_SHARE = 0.015  # of a window: a shorter delay is not worth pinning
GUEST_SHARE = 0.15  # a longer delay of a pinned learner means that another program uses its core
IDLE_SHARE = 0.1  # a learner that is idle for longer is not the bottleneck
BAD_WINDOWS = 3  # in a row; a single one may be a checkpoint

PROC = Path("/proc")


class Times(NamedTuple):
    """Times of a process's first thread, in seconds."""

    at: float
    ran: float
    held: float  # ready to run, but without a core


class OwnCore:
    """Decides at each `look` whether the learner has its own core. `note` shows a sentence to the user."""

    def __init__(self, pin: Pin, note: Callable[[str], None], proc: Path = PROC) -> None:
        self._note, self._proc = note, proc
        self._cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        self.core: int | None = None  # the learner's
        self._is_fixed = pin == "on"
        self._is_done = pin == "off" or len(self._cores) < 2
        if pin == "on" and self._is_done:
            note("local.pin=on has no effect here: it needs two cores and a system that can pin threads.")
        self._pid = 0
        self._last: Times | None = None
        self._held_before = 0.0
        self._bad = 0

    def look(self, learner: int, others: Iterable[int], now: float) -> None:
        """`learner` and `others` are the pids of the run's processes."""
        if self._is_done:
            return
        if self._is_fixed:
            self.core = self._core_of(learner) if self.core is None else self.core
        else:
            self._measure(learner, now)
        if self.core is not None:
            self._divide(learner, others, self.core)
        elif self._is_done:
            self._share([learner, *others])

    def end(self, pids: Iterable[int]) -> None:
        """Ends pinning: every process may use all cores."""
        if self.core is not None:
            self._share(pids)
        self.core, self._is_done = None, True

    def _measure(self, learner: int, now: float) -> None:
        if learner != self._pid:
            self._pid, self._last = learner, None
        times = self._times(learner, now)
        if times is None:
            return
        if self._last is None:
            self._last = times
        if times.at - self._last.at >= WINDOW_S:
            self._judge(self._last, times)
            self._last = times

    def _judge(self, before: Times, after: Times) -> None:
        seconds = after.at - before.at
        held = (after.held - before.held) / seconds
        idle = 1 - held - (after.ran - before.ran) / seconds
        if self.core is None:
            if held > HELD_SHARE and idle < IDLE_SHARE:
                self.core, self._held_before, self._bad = self._core_of(self._pid), held, 0
                self._note(
                    f"Pinned the learner to core {self.core}: other processes delayed it {100 * held:.0f} % of the time."
                )
            return
        is_bad = idle > IDLE_SHARE or held > max(self._held_before, GUEST_SHARE)
        self._bad = self._bad + 1 if is_bad else 0
        if self._bad == BAD_WINDOWS:
            why = (
                "it waits for the actors"
                if idle > IDLE_SHARE
                else f"it is still delayed {100 * held:.0f} % of the time"
            )
            self._note(f"No longer pinning the learner to core {self.core}: {why}.")
            self.core, self._is_done = None, True

    def _divide(self, learner: int, others: Iterable[int], core: int) -> None:
        rest = set(self._cores) - {core}
        for pid in (learner, *others):
            for thread in self._threads(pid):
                _bind(thread, {core} if thread == learner else rest)

    def _share(self, pids: Iterable[int]) -> None:
        for pid in pids:
            for thread in self._threads(pid):
                _bind(thread, set(self._cores))

    def _threads(self, pid: int) -> list[int]:
        with contextlib.suppress(OSError):
            return [int(entry.name) for entry in (self._proc / str(pid) / "task").iterdir()]
        return []

    def _times(self, pid: int, now: float) -> Times | None:
        with contextlib.suppress(OSError, ValueError):
            ran, held, _ = (self._proc / str(pid) / "schedstat").read_text().split()
            return Times(now, int(ran) / 1e9, int(held) / 1e9)
        return None

    def _core_of(self, pid: int) -> int:
        """The core on which it ran last, if the system shows it."""
        with contextlib.suppress(OSError, IndexError, ValueError):
            core = int((self._proc / str(pid) / "stat").read_text().rpartition(")")[2].split()[36])
            if core in self._cores:
                return core
        return self._cores[0]


def _bind(thread: int, cores: set[int]) -> None:
    with contextlib.suppress(OSError):  # it has ended
        if os.sched_getaffinity(thread) != cores:
            os.sched_setaffinity(thread, cores)
