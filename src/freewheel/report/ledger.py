"""The ledger: nanoseconds per phase, counters and gauges of every role, in shared memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from freewheel import _core
from freewheel.errors import ConfigError
from freewheel.memory.segment import Segment

# The time and counts of one role. `enter(phase)` ends the running phase and begins another; `count(counter, n)` adds n;
# `set(gauge, value)` replaces. All take an index into the names of the ledger.
Page = _core.Ledger


@dataclass(frozen=True)
class Snapshot:
    """One role's ledger at one moment, including the running phase.

    `is_whole` is False if the role died in the middle of a mark: the values may then be incomplete.
    """

    phases_ns: dict[str, int]
    counters: dict[str, int]
    gauges: dict[str, float]
    is_whole: bool

    def in_s(self, phases: Iterable[str]) -> float:
        """Seconds in these phases together."""
        return sum(self.phases_ns[phase] for phase in phases) / 1e9


class Ledger:
    """One page per role; all pages have the same phases, counters and gauges.

    Each page has one writer. Pass the ledger to a child process as an argument; the child takes its `page`.
    """

    def __init__(
        self, num_roles: int, phases: Sequence[str], counters: Sequence[str] = (), gauges: Sequence[str] = ()
    ) -> None:
        names = [*phases, *counters, *gauges]
        if num_roles < 1 or not phases or len(set(names)) != len(names):
            raise ConfigError(
                f"a ledger needs at least one role and phase, and unique names; got {num_roles} roles, {names}."
            )
        self.num_roles = num_roles
        self.phases = tuple(phases)
        self.counters = tuple(counters)
        self.gauges = tuple(gauges)
        page_bytes = Page.num_bytes(len(phases), len(counters), len(gauges))
        self.segment = Segment.create(num_roles * page_bytes, "the ledger")

    def page(self, role: int) -> Page:
        """What the role marks its time with."""
        if not 0 <= role < self.num_roles:
            raise ConfigError(f"role {role} does not exist: there are roles 0 to {self.num_roles - 1}.")
        return Page.make(self.segment.core, role, len(self.phases), len(self.counters), len(self.gauges))

    def snapshot(self, role: int) -> Snapshot:
        """What the role has marked so far."""
        is_whole, values, gauges = self.page(role).snapshot()
        split = len(self.phases)
        return Snapshot(
            dict(zip(self.phases, values[:split], strict=True)),
            dict(zip(self.counters, values[split:], strict=True)),
            dict(zip(self.gauges, gauges, strict=True)),
            is_whole,
        )
