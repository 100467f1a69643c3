"""How fast a process goes and what it takes: rates and shares between two looks."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from freewheel.report.ledger import Snapshot


def infer_ms(actors: Sequence[Snapshot]) -> dict[str, float]:
    """How long a choice of actions for all lanes that were ready took, over the run so far; nothing before the first."""
    choices = sum(actor.counters["choices"] for actor in actors)
    return {"time/infer_ms": sum(actor.phases_ns["infer"] for actor in actors) / choices / 1e6} if choices else {}


class Usage:
    """Gives, at each call, rates since the call before: counts per second, shares of the time, CPU and memory.

    `spend(name, seconds)` adds to a share: what the roles of one process do in turn.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last_s = clock()
        self._last_cpu_s = _cpu_seconds()
        self._counts: dict[str, float] = {}
        self._spent: dict[str, float] = {}

    def spend(self, name: str, seconds: float) -> None:
        self._spent[name] = self._spent.get(name, 0.0) + seconds

    def figures(self, counts: Mapping[str, float]) -> dict[str, float]:
        """`counts` are totals, such as steps and updates so far."""
        now, cpu_s = self._clock(), _cpu_seconds()
        seconds = max(now - self._last_s, 1e-9)
        found = {f"rate/{name}_per_s": (n - self._counts.get(name, n)) / seconds for name, n in counts.items()}
        found |= {f"time/{name}_share": spent / seconds for name, spent in self._spent.items()}
        found["process/cpu_share"] = (cpu_s - self._last_cpu_s) / seconds
        found["process/memory_mb"] = _memory_bytes() / 1e6
        self._last_s, self._last_cpu_s = now, cpu_s
        self._counts, self._spent = dict(counts), dict.fromkeys(self._spent, 0.0)
        return found


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _memory_bytes() -> float:
    try:
        with open("/proc/self/statm") as file:
            return float(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    except OSError:  # no /proc (macOS): the most it ever had, in bytes there
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return float(most if sys.platform == "darwin" else most * 1024)
