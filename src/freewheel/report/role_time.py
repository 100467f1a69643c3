"""The time of one role, from its ledger and the system, over all its lives (restarts)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from freewheel.report.ledger import Snapshot

# About thirty million years: sums of such numbers stay finite, so one bad value cannot spoil a share.
MOST_S = 1e15


@dataclass(frozen=True)
class RoleTime:
    """What one role did. The lives of a role may come as one entry or as several.

    `kind` is actor, learner or supervisor; other kinds are shown but take no part in the verdict. `wall_s` is the time from
    start to end, over all its lives. `is_whole` is False if it died in the middle of a mark.
    """

    name: str
    kind: str
    wall_s: float
    phases: Mapping[str, float] = field(default_factory=dict)
    counters: Mapping[str, int] = field(default_factory=dict)
    gauges: Mapping[str, float] = field(default_factory=dict)
    cpu_s: float = 0.0
    starts: int = 1
    is_whole: bool = True

    @staticmethod
    def of(name: str, kind: str, snapshot: Snapshot, wall_s: float, *, cpu_s: float = 0.0, starts: int = 1) -> RoleTime:
        """From the role's page of the ledger."""
        phases = {phase: ns / 1e9 for phase, ns in snapshot.phases_ns.items()}
        return RoleTime(
            name, kind, wall_s, phases, snapshot.counters, snapshot.gauges, cpu_s, starts, snapshot.is_whole
        )


def merge(roles: Sequence[RoleTime]) -> list[RoleTime]:
    """One entry per role: adds up its lives, and keeps the latest gauges."""
    found: dict[str, RoleTime] = {}
    for role in roles:
        now = replace(
            role,
            wall_s=clean(role.wall_s),
            phases={phase: clean(s) for phase, s in role.phases.items()},
            gauges={gauge: clean(value) for gauge, value in role.gauges.items()},
            cpu_s=clean(role.cpu_s),
        )
        if (before := found.get(role.name)) is not None:
            now = replace(
                before,
                wall_s=before.wall_s + now.wall_s,
                phases=_sum(before.phases, now.phases),
                counters=_sum(before.counters, now.counters),
                gauges={**before.gauges, **now.gauges},
                cpu_s=before.cpu_s + now.cpu_s,
                starts=before.starts + now.starts,
                is_whole=before.is_whole and now.is_whole,
            )
        found[role.name] = now
    return list(found.values())


def clean(value: float) -> float:
    """A role that died may leave any number; shares need finite numbers that are not negative."""
    return min(max(value, 0.0), MOST_S) if math.isfinite(value) else 0.0


def _sum(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}
