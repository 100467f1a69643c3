"""One role's time as its ledger and the system give it, over all its lives."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from freewheel.report.ledger import Snapshot

# About thirty million years: sums of such numbers stay finite, so no figure can spoil a share.
MOST_S = 1e15


@dataclass(frozen=True)
class RoleTime:
    """What one role did, as its ledger and the system say. Several lives of a role may come as one or one by one.

    `kind` is actor, learner or supervisor; another kind is shown and takes no part in the verdict. `wall_s` runs from its start to
    its end, over all its lives. `is_whole` is False where it died in the middle of a mark.
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

    def since(self, before: RoleTime) -> RoleTime:
        """What came after an earlier look at the same role: leaves start-up or warm-up out of an account."""
        return RoleTime(
            self.name,
            self.kind,
            self.wall_s - before.wall_s,
            {phase: s - before.phases.get(phase, 0.0) for phase, s in self.phases.items()},
            {name: n - before.counters.get(name, 0) for name, n in self.counters.items()},
            self.gauges,
            self.cpu_s - before.cpu_s,
            self.starts,
            self.is_whole,
        )


def merge(roles: Sequence[RoleTime]) -> list[RoleTime]:
    """One entry per name: lives of the same role are added up, its gauges are those of the last."""
    found: dict[str, RoleTime] = {}
    for role in roles:
        now = RoleTime(
            role.name,
            role.kind,
            clean(role.wall_s),
            {phase: clean(s) for phase, s in role.phases.items()},
            dict(role.counters),
            {gauge: clean(value) for gauge, value in role.gauges.items()},
            clean(role.cpu_s),
            role.starts,
            role.is_whole,
        )
        before = found.get(role.name)
        found[role.name] = now if before is None else _add(before, now)
    return list(found.values())


def clean(value: float) -> float:
    """A figure of a role that died may be anything; a share needs a number that is not negative."""
    return min(max(value, 0.0), MOST_S) if math.isfinite(value) else 0.0


def _add(before: RoleTime, now: RoleTime) -> RoleTime:
    names = dict.fromkeys([*before.phases, *now.phases])
    counters = dict.fromkeys([*before.counters, *now.counters])
    return RoleTime(
        now.name,
        before.kind,
        before.wall_s + now.wall_s,
        {name: before.phases.get(name, 0.0) + now.phases.get(name, 0.0) for name in names},
        {name: before.counters.get(name, 0) + now.counters.get(name, 0) for name in counters},
        {**before.gauges, **now.gauges},
        before.cpu_s + now.cpu_s,
        before.starts + now.starts,
        before.is_whole and now.is_whole,
    )
