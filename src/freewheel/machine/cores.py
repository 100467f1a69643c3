"""The cores of this machine: how many this process may keep busy, and what they can do."""

from __future__ import annotations

import math
import os
import platform
from pathlib import Path


def num_cores(root: Path = Path("/")) -> int:
    """Cores that this process may keep busy: its affinity, cut by the CPU quotas of the control groups above it."""
    quota = cpu_quota(root)
    # A part of a core is not one to plan with: roles that use up a quota are all stopped until its period ends.
    return max(1, min(affinity(), affinity() if quota is None else math.floor(quota)))


def cpu_quota(root: Path = Path("/")) -> float | None:
    """The smallest CPU quota of a control group from ours up to the root, in cores; None where there is none."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            tops = [root / "sys/fs/cgroup"]
        elif "cpu" in controllers.split(","):
            tops = [root / "sys/fs/cgroup/cpu", root / "sys/fs/cgroup/cpu,cpuacct"]
        else:
            continue
        here = Path(path.lstrip("/"))
        found += [_quota_of(top / group) for top in tops for group in [here, *here.parents]]
    return min((quota for quota in found if quota is not None), default=None)


def _quota_of(group: Path) -> float | None:
    for read in (_read_new, _read_old):
        try:
            quota, period = read(group)
        except (OSError, ValueError):
            continue  # not this version of the interface, or "max"
        if quota > 0 and period > 0:
            return quota / period
    return None


def _read_new(group: Path) -> tuple[int, int]:
    quota, period = (group / "cpu.max").read_text().split()
    return int(quota), int(period)


def _read_old(group: Path) -> tuple[int, int]:
    return int((group / "cpu.cfs_quota_us").read_text()), int((group / "cpu.cfs_period_us").read_text())


def affinity() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_flags() -> str:
    """What the compiler may use: code for one CPU may not run on another."""
    lines = cpu_info().splitlines()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())


def cpu_info() -> str:
    """The text of /proc/cpuinfo; empty where there is none."""
    try:
        return Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""
