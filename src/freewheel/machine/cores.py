"""The CPU cores of this machine: how many this process may use, and their features."""

from __future__ import annotations

import contextlib
import math
import os
import platform
from pathlib import Path

from freewheel.memory.segment import control_groups


def num_cores(root: Path = Path("/")) -> int:
    """Cores that this process may use, by its affinity and the CPU quotas of its control groups."""
    quota = cpu_quota(root)
    # Rounded down: when roles have used up a quota, all of them are stopped until its period ends.
    return max(1, affinity() if quota is None else min(affinity(), math.floor(quota)))


def cpu_quota(root: Path = Path("/")) -> float | None:
    """The smallest CPU quota of our control group and those above it, in cores; None without one."""
    found = [_quota_of(group) for group in control_groups(root, "cpu", "cpu,cpuacct")]
    return min((quota for quota in found if quota is not None), default=None)


def _quota_of(group: Path) -> float | None:
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):  # both versions of the interface
        with contextlib.suppress(OSError, ValueError):  # it is the other version, or the quota is "max"
            quota, period = (int(word) for name in names for word in (group / name).read_text().split())
            if quota > 0 and period > 0:
                return quota / period
    return None


def affinity() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_flags() -> str:
    """The features of the CPU: code compiled for one CPU may not run on another."""
    lines = cpu_info().splitlines()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())


def cpu_info() -> str:
    """The text of /proc/cpuinfo; empty if it does not exist."""
    try:
        return Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""
