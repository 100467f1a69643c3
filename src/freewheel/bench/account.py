"""What a run's account says in a benchmark: its sentence, how far it closes, and how busy the role is that binds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from freewheel.bench.harness import shown
from freewheel.report.phases import USEFUL

# Before and after the steady state, which is what a benchmark asks about.
BESIDE = ("start", "compile", "checkpoint", "stop")
LEAST_RUNNING = 1e-9


def summary(account: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """None when the run kept no account; what it does not say is left out."""
    if not account:
        return None
    found: dict[str, Any] = {}
    if account.get("verdict"):
        found["verdict"] = account["verdict"]
    roles = {name: role for name, role in account.get("roles", {}).items() if isinstance(role, Mapping)}
    closed = [role["closed"] for role in roles.values() if role.get("closed") is not None]
    if closed:
        found["closed"] = shown(min(closed))
    shares = {name: useful_share(role["phases"]) for name, role in roles.items() if role.get("phases")}
    if shares:
        found["useful"] = {name: shown(share) for name, share in shares.items()}
        found["binding"] = binding(account, shares)
        found["binding_useful"] = shown(shares[found["binding"]])
    return found or None


def binding(account: Mapping[str, Any], shares: Mapping[str, float]) -> str:
    """The role that the account says binds; the busiest one when it names none."""
    kind = {"learner": "learner", "actors": "actor"}.get(account.get("binds", ""))
    of_kind = [name for name in shares if account["roles"][name].get("kind") == kind]
    return max(of_kind or shares, key=lambda name: shares[name])


def useful_share(phases: Mapping[str, float]) -> float:
    """Of the time between start and stop, compiling left out."""
    running = sum(share for name, share in phases.items() if name not in BESIDE)
    return sum(phases.get(name, 0.0) for name in USEFUL) / max(running, LEAST_RUNNING)


def sentence(found: Mapping[str, Any]) -> str:
    """`closed 99.1 %; learner: 96 % useful; The learner binds ...`"""
    parts = []
    if "closed" in found:
        parts.append(f"account closed to {100 * found['closed']:.1f} %")
    if "binding" in found:
        parts.append(f"{found['binding']} spends {100 * found['binding_useful']:.0f} % on useful work")
    return "; ".join(parts) + (f". {found['verdict']}" if "verdict" in found else "")
