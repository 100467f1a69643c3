"""The account: where every second of every role went, and what binds the run."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from freewheel.report.phases import ACTOR, LEARNER, SUPERVISOR, USEFUL
from freewheel.report.role_time import RoleTime, clean, merge
from freewheel.report.verdict import Side, judge
from freewheel.report.warnings import find_warnings

__all__ = ["Account", "RoleAccount", "RoleTime", "account", "table"]

OF_KIND = {"actor": ACTOR, "learner": LEARNER, "supervisor": SUPERVISOR}
COLUMNS = 80
# More roles of a kind than this become one line of the table; the account keeps them all.
SHOWN_PER_KIND = 8


@dataclass(frozen=True)
class RoleAccount:
    """One role's phases as shares of its wall time. `closed` is the sum of all, `useful` of env, infer and compute."""

    name: str
    kind: str
    wall_s: float
    starts: int
    closed: float
    useful: float
    phases: dict[str, float]
    cpu_share: float
    memory_mb: float


@dataclass(frozen=True)
class Account:
    """All roles, the lines of its table, what binds the run (`binds`, and `verdict` as a sentence), and warnings."""

    roles: dict[str, RoleAccount]
    lines: tuple[RoleAccount, ...]
    binds: str
    verdict: str
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """As `train --json` shows it."""
        roles = {
            name: {
                "kind": role.kind,
                "closed": round(role.closed, 4),
                "useful": round(role.useful, 4),
                "wall_s": round(role.wall_s, 3),
                "starts": role.starts,
                "phases": {phase: round(share, 4) for phase, share in role.phases.items()},
                "cpu_share": round(role.cpu_share, 4),
                "memory_mb": round(role.memory_mb, 1),
            }
            for name, role in self.roles.items()
        }
        return {"roles": roles, "binds": self.binds, "verdict": self.verdict, "warnings": list(self.warnings)}

    def metrics(self) -> dict[str, float]:
        """For the log: `account/<role>/<phase>`, and each role's `useful` and `closed`."""
        return {
            f"account/{role.name.replace(' ', '_')}/{name}": share
            for role in self.roles.values()
            for name, share in {**role.phases, "useful": role.useful, "closed": role.closed}.items()
        }


def account(
    roles: Sequence[RoleTime],
    *,
    ratio_target: float,
    ratio: float,
    is_free: bool,
    warmup_s: float = 0.0,
    fewer_updates: str = "",
) -> Account:
    """Adds the roles up.

    `warmup_s` is how long a learner had to wait for its first rows, which blames no side. `fewer_updates` is the algorithm's
    setting for fewer updates per step, if it has one.
    """
    merged = merge(roles)
    actors = _side([role for role in merged if role.kind == "actor"])
    learners = _side([role for role in merged if role.kind == "learner"], clean(warmup_s), fewer_updates)
    if not actors.wall_s and not learners.wall_s:
        # Sequential: one role acts and learns.
        actors = _side([role for role in merged if role.kind not in OF_KIND], fewer_updates=fewer_updates)
    binds, verdict = judge(actors, learners, ratio_target, ratio, is_free)
    warnings = find_warnings(merged, actors, learners, ratio_target, ratio, is_free)
    by_name = {role.name: _shares(role) for role in merged}
    return Account(by_name, tuple(_lines(merged)), binds, verdict, tuple(warnings))


def table(account: Account) -> str:
    """Plain text of at most 80 columns: one line per role, the warnings, the verdict."""
    lines = [f"{'role':<12} {'time':>9} {'closed':>7} {'useful':>7} {'cores':>6}  where it went, in %"]
    for role in account.lines:
        closed, useful = f"{100 * role.closed:.0f} %", f"{100 * role.useful:.0f} %"
        cores = min(role.cpu_share, 999.0)
        head = f"{role.name[:12]:<12} {_seconds(role.wall_s):>9} {closed:>7} {useful:>7} {cores:>6.2f}  "
        # Non-breaking spaces while it is wrapped: a phase and its share stay on one line.
        lines += [line.replace("\xa0", " ") for line in _wrap(_spent(role), head, " " * len(head))]
    for warning in account.warnings:
        lines += _wrap(warning, "warning: ", "         ")
    return "\n".join([*lines, *_wrap(account.verdict, "", "")])


def _whole_s(role: RoleTime) -> float:
    """The whole of all shares. A ledger that is read a moment after the end may hold a little more than the wall time."""
    return max(role.wall_s, math.fsum(role.phases.values()))


def _shares(role: RoleTime) -> RoleAccount:
    whole_s = _whole_s(role)
    own = OF_KIND.get(role.kind, ())
    # All pages have all phases: a phase of another kind of role is left out if it is 0.
    spent = {**dict.fromkeys(own, 0.0), **{phase: s for phase, s in role.phases.items() if s > 0 or phase in own}}
    shares = {phase: s / whole_s if whole_s > 0 else 0.0 for phase, s in spent.items()}
    return RoleAccount(
        role.name,
        role.kind,
        role.wall_s,
        role.starts,
        closed=min(math.fsum(shares.values()), 1.0),
        useful=min(math.fsum(shares.get(phase, 0.0) for phase in USEFUL), 1.0),
        phases=shares,
        cpu_share=clean(role.cpu_s / role.wall_s) if role.wall_s > 0 else 0.0,
        memory_mb=role.gauges.get("memory_mb", 0.0),
    )


def _side(roles: Sequence[RoleTime], warmup_s: float = 0.0, fewer_updates: str = "") -> Side:
    names = dict.fromkeys(name for role in roles for name in role.phases)
    return Side(
        {name: math.fsum(role.phases.get(name, 0.0) for role in roles) for name in names},
        math.fsum(_whole_s(role) for role in roles),
        warmup_s * len(roles),
        fewer_updates,
    )


def _lines(roles: Sequence[RoleTime]) -> Iterator[RoleAccount]:
    """Roles as the table shows them: many of a kind become one line, with their mean wall time."""
    for kind in dict.fromkeys(role.kind for role in roles):
        same = [role for role in roles if role.kind == kind]
        if len(same) <= SHOWN_PER_KIND:
            yield from map(_shares, same)
        else:
            (together,) = merge([replace(role, name=f"{len(same)} {kind}s") for role in same])
            yield replace(_shares(together), wall_s=together.wall_s / len(same))


def _spent(role: RoleAccount) -> str:
    """Largest first. `other` adds up the shares that round to 0; `unmarked` is time without a phase."""
    shares = sorted(role.phases.items(), key=lambda item: -item[1])
    parts = [f"{name}\xa0{100 * share:.0f}" for name, share in shares if share >= 0.005]
    other = math.fsum(share for _, share in shares if share < 0.005)
    unmarked = 1 - role.closed if role.wall_s > 0 else 0.0
    for name, share in (("other", other), ("unmarked", unmarked)):
        if share >= 0.005:
            parts.append(f"{name}\xa0{100 * share:.0f}")
    return ", ".join(parts) or "-"


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 1e6 else f"{seconds:.1e} s"


def _wrap(text: str, first: str, rest: str) -> list[str]:
    return textwrap.wrap(text, COLUMNS, initial_indent=first, subsequent_indent=rest) or [first.rstrip()]
