"""Rates of a run, and the CPU time and memory of its processes."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from freewheel.report.ledger import Snapshot

PROC = Path("/proc")


class ProcessUsage:
    """CPU time and memory of one process, from /proc. None if the process has ended, or without /proc.

    The system may reuse a pid: a process with another start time counts as ended.
    """

    def __init__(self, pid: int, clock: Callable[[], float] = time.monotonic, proc: Path = PROC) -> None:
        self._clock = clock
        self._last: tuple[float, float] | None = None  # time and CPU seconds at the last call of `metrics`
        self._stat, self._statm = proc / str(pid) / "stat", proc / str(pid) / "statm"
        fields = self._fields()
        self._began = fields[19] if fields else None

    def cpu_s(self) -> float | None:
        """CPU seconds of all its threads, in user code and in the kernel."""
        fields = self._fields()
        if not fields or fields[19] != self._began or fields[0] in "ZX":
            return None
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_mb(self) -> float | None:
        """Resident memory. Shared memory counts in every process that touched it."""
        if self.cpu_s() is None:
            return None
        try:
            return int(self._statm.read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6
        except (OSError, ValueError, IndexError):
            return None

    def metrics(self, role: str) -> dict[str, float]:
        """`process/<role>/memory_mb`, and from the second call on `cpu_share`: cores since the last call. Empty if it has ended."""
        now, cpu_s, memory_mb = self._clock(), self.cpu_s(), self.memory_mb()
        if cpu_s is None or memory_mb is None:
            return {}
        name = f"process/{role.replace(' ', '_')}"
        found = {f"{name}/memory_mb": memory_mb}
        if self._last is not None:
            found[f"{name}/cpu_share"] = max(cpu_s - self._last[1], 0.0) / max(now - self._last[0], 1e-9)
        self._last = now, cpu_s
        return found

    def _fields(self) -> list[str]:
        """From the third field on: the second is the program's name, which may contain spaces and brackets."""
        try:
            fields = self._stat.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            return []
        return fields if len(fields) > 19 else []


class Usage:
    """Rates of this process since the previous call: counts per second, shares of the time, CPU and memory."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._process = ProcessUsage(os.getpid())
        self._last_s, self._last_cpu_s = clock(), time.process_time()
        self._counts: Mapping[str, float] = {}
        self._spent_s: Mapping[str, float] = {}

    def metrics(
        self, counts: Mapping[str, float], spent_s: Mapping[str, float] = MappingProxyType({})
    ) -> dict[str, float]:
        """Both are totals so far: `counts` such as steps and updates, `spent_s` what actor and learner took of a time they share."""
        now, cpu_s = self._clock(), time.process_time()
        seconds = max(now - self._last_s, 1e-9)
        found = {f"rate/{name}_per_s": (n - self._counts.get(name, n)) / seconds for name, n in counts.items()}
        found |= {f"time/{name}_share": (s - self._spent_s.get(name, 0.0)) / seconds for name, s in spent_s.items()}
        found["process/cpu_share"] = (cpu_s - self._last_cpu_s) / seconds
        found["process/memory_mb"] = self._process.memory_mb() or _peak_mb()
        self._last_s, self._last_cpu_s = now, cpu_s
        self._counts, self._spent_s = dict(counts), dict(spent_s)
        return found


def _peak_mb() -> float:
    """The most memory that this process ever had: all there is without /proc. macOS counts bytes, Linux kilobytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6


def infer_ms(actors: Sequence[Snapshot]) -> dict[str, float]:
    """Mean time to choose actions for all ready lanes, over the run so far; empty before the first choice."""
    choices = sum(actor.counters["choices"] for actor in actors)
    return {"time/infer_ms": sum(actor.phases_ns["infer"] for actor in actors) / choices / 1e6} if choices else {}
