"""What the processes of a run take, seen from outside: CPU time and memory of each, by /proc."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

PROC = Path("/proc")


class ProcessUsage:
    """One process, by its pid. Every answer is None once it is gone, or where there is no /proc.

    A pid can be given to another process later: one that began at another time is not the same, and counts as gone.
    """

    def __init__(self, pid: int, proc: Path = PROC) -> None:
        self.pid = pid
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
        """Resident memory; shared memory that it has touched is counted in every process that did."""
        if self.cpu_s() is None:
            return None
        try:
            return int(self._statm.read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6
        except (OSError, ValueError, IndexError):
            return None

    def _fields(self) -> list[str]:
        """From the third on: the second is the program's name, which may hold blanks and brackets."""
        try:
            fields = self._stat.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            return []
        return fields if len(fields) > 19 else []


class Processes:
    """Gives, at each call, what every role's process took since the call before."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, proc: Path = PROC) -> None:
        self._clock = clock
        self._proc = proc
        self._seen: dict[str, ProcessUsage] = {}
        self._last: dict[str, tuple[float, float]] = {}

    def figures(self, pids: Mapping[str, int]) -> dict[str, float]:
        """`process/<role>/cpu_share` in cores and `process/<role>/memory_mb`. A role that is gone has none.

        The first look at a process has no rate; a role with a new pid is looked at anew.
        """
        found: dict[str, float] = {}
        for role in [role for role in self._seen if role not in pids]:
            self._forget(role)
        for role, pid in pids.items():
            found |= self._look(role, pid)
        return found

    def _look(self, role: str, pid: int) -> dict[str, float]:
        if role not in self._seen or self._seen[role].pid != pid:
            self._forget(role)
            self._seen[role] = ProcessUsage(pid, self._proc)
        usage = self._seen[role]
        now, cpu_s, memory_mb = self._clock(), usage.cpu_s(), usage.memory_mb()
        if cpu_s is None or memory_mb is None:
            self._forget(role)
            return {}
        name = f"process/{role.replace(' ', '_')}"
        found = {f"{name}/memory_mb": memory_mb}
        if role in self._last:
            last_s, last_cpu_s = self._last[role]
            found[f"{name}/cpu_share"] = max(cpu_s - last_cpu_s, 0.0) / max(now - last_s, 1e-9)
        self._last[role] = (now, cpu_s)
        return found

    def _forget(self, role: str) -> None:
        self._seen.pop(role, None)
        self._last.pop(role, None)
