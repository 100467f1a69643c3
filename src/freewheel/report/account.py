"""The account: where every second of every role went, added up to wall time, and a verdict."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from freewheel.report.phases import ACTOR, LEARNER, SUPERVISOR, USEFUL
from freewheel.report.role_time import RoleTime, clean, merge
from freewheel.report.verdict import Side, judge
from freewheel.report.warnings import doubts

__all__ = ["Account", "RoleAccount", "RoleTime", "account", "scalars", "table"]

OF_KIND = {"actor": ACTOR, "learner": LEARNER, "supervisor": SUPERVISOR}
COLUMNS = 80
# More roles of a kind than this are shown as one line; the account itself keeps them all.
SHOWN_PER_KIND = 8


@dataclass(frozen=True)
class RoleAccount:
    """One role's time as shares of its wall time; `closed` is their sum and `useful` that of env, infer and compute."""

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
    """All roles, what binds the run (`binds`), the same as a sentence (`verdict`), and what looks wrong (`warnings`)."""

    roles: dict[str, RoleAccount]
    binds: str
    verdict: str
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """As `train --json` gives it."""
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


def account(
    roles: Sequence[RoleTime], *, ratio_target: float, ratio: float, is_free: bool, warmup_s: float = 0.0
) -> Account:
    """Adds the roles up. `warmup_s` is how long a learner had to wait for its first rows, which nobody is to blame for."""
    merged = merge(roles)
    found = {role.name: _shares(role) for role in merged}
    actors = _side([role for role in merged if role.kind == "actor"])
    learners = _side([role for role in merged if role.kind == "learner"], clean(warmup_s))
    if not actors.wall_s and not learners.wall_s:
        actors = _side([role for role in merged if role.kind not in OF_KIND])  # one role that acts and learns in turn
    verdict = judge(actors, learners, ratio_target, ratio, is_free)
    warnings = doubts(merged, actors, learners, ratio_target, ratio, is_free)
    return Account(found, verdict.binds, verdict.sentence, tuple(warnings))


def scalars(account: Account) -> dict[str, float]:
    """For TensorBoard: `account/<role>/<phase>`, and `useful` and `closed` beside the phases."""
    found = {}
    for role in account.roles.values():
        for what, share in {**role.phases, "useful": role.useful, "closed": role.closed}.items():
            found[f"account/{role.name.replace(' ', '_')}/{what}"] = share
    return found


def table(account: Account) -> str:
    """Plain text of at most 80 columns: a line per role, the warnings, the verdict."""
    lines = [f"{'role':<12} {'time':>9} {'closed':>7} {'useful':>7} {'cores':>6}  where it went, in %"]
    for role in _shown(list(account.roles.values())):
        closed, useful = f"{100 * role.closed:.0f} %", f"{100 * role.useful:.0f} %"
        cores = min(role.cpu_share, 999.0)
        head = f"{role.name[:12]:<12} {_seconds(role.wall_s):>9} {closed:>7} {useful:>7} {cores:>6.2f}  "
        # No line ends between a phase and its share: hard blanks while it is wrapped.
        lines += [line.replace("\xa0", " ") for line in _wrap(_spent(role), head, " " * len(head))]
    for warning in account.warnings:
        lines += _wrap(warning, "warning: ", "         ")
    return "\n".join([*lines, *_wrap(account.verdict, "", "")])


def _whole_s(role: RoleTime) -> float:
    """What shares are shares of: a ledger read a moment after the end may hold a little more than the wall time."""
    return max(role.wall_s, math.fsum(role.phases.values()))


def _shares(role: RoleTime) -> RoleAccount:
    whole_s = _whole_s(role)
    own = OF_KIND.get(role.kind, ())
    # Pages share their names: a phase of another kind of role is left out unless this one was in it.
    spent = {**dict.fromkeys(own, 0.0), **{phase: s for phase, s in role.phases.items() if s > 0 or phase in own}}
    shares = {phase: s / whole_s if whole_s > 0 else 0.0 for phase, s in spent.items()}
    cpu_share = role.cpu_s / role.wall_s if role.wall_s > 0 else 0.0
    return RoleAccount(
        role.name,
        role.kind,
        role.wall_s,
        role.starts,
        closed=min(math.fsum(shares.values()), 1.0),
        useful=min(math.fsum(shares.get(phase, 0.0) for phase in USEFUL), 1.0),
        phases=shares,
        cpu_share=clean(cpu_share),
        memory_mb=role.gauges.get("memory_mb", 0.0),
    )


def _side(roles: Sequence[RoleTime], warmup_s: float = 0.0) -> Side:
    names = dict.fromkeys(name for role in roles for name in role.phases)
    return Side(
        {name: math.fsum(role.phases.get(name, 0.0) for role in roles) for name in names},
        math.fsum(_whole_s(role) for role in roles),
        warmup_s * len(roles),
    )


def _shown(roles: list[RoleAccount]) -> list[RoleAccount]:
    """Many roles of a kind become one: the mean of their shares over their time."""
    shown = []
    for kind in dict.fromkeys(role.kind for role in roles):
        same = [role for role in roles if role.kind == kind]
        shown += same if len(same) <= SHOWN_PER_KIND else [_mean(kind, same)]
    return shown


def _mean(kind: str, roles: list[RoleAccount]) -> RoleAccount:
    total_s = math.fsum(role.wall_s for role in roles)

    def mean(shares: list[float]) -> float:
        weights = [role.wall_s / total_s if total_s > 0 else 1 / len(roles) for role in roles]
        return math.fsum(share * weight for share, weight in zip(shares, weights, strict=True))

    return RoleAccount(
        f"{len(roles)} {kind}s",
        kind,
        total_s / len(roles),
        sum(role.starts for role in roles),
        mean([role.closed for role in roles]),
        mean([role.useful for role in roles]),
        {
            phase: mean([role.phases.get(phase, 0.0) for role in roles])
            for phase in dict.fromkeys(phase for role in roles for phase in role.phases)
        },
        mean([role.cpu_share for role in roles]),
        mean([role.memory_mb for role in roles]),
    )


def _spent(role: RoleAccount) -> str:
    """Largest first; what rounds to nothing is added up as `other`, what no phase has is `unmarked`."""
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
