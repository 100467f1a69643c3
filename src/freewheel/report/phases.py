"""The names in the ledger of a run: the phases, counters and gauges of all roles."""

from __future__ import annotations

from freewheel.report.ledger import Ledger

ACTOR = ("start", "env", "infer", "write", "fetch", "wait_ratio", "report", "stop")
LEARNER = (
    "start",
    "wait_data",
    "sample",
    "transfer",
    "compute",
    "wait_workers",
    "priorities",
    "publish",
    "checkpoint",
    "compile",
    "report",
    "stop",
)
SUPERVISOR = ("start", "watch", "log", "checkpoint", "stop")

# All pages of a ledger share one list of names; each role uses its own part of it.
PHASES = tuple(dict.fromkeys([*ACTOR, *LEARNER, *SUPERVISOR]))

USEFUL = frozenset({"env", "infer", "compute"})
"""The purpose of a run; all other phases serve these."""

ACTS = ("env", "infer", "write", "fetch")
LEARNS = ("sample", "transfer", "compute", "wait_workers", "priorities", "publish", "compile")
"""What actor and learner take of a process that they share."""

WAITS = frozenset({"wait_ratio", "wait_data"})
"""Asleep until another role has done its part."""

COUNTERS = (
    "beats",
    "steps",
    "rows_begun",
    "rows",
    "choices",
    "episodes",
    "fetched",
    "published",
    "updates",
    "samples",
    "redraws",
    "stale_priorities",
    "dropped_rows",
    "dropped_messages",
    "cut_episodes",
)
GAUGES = ("epsilon", "policy_lag", "sample_age", "version")


def epsilon_of(policy: int) -> str:
    """The gauge of a policy's epsilon."""
    return f"epsilon.{policy}" if policy else "epsilon"


def new_ledger(num_roles: int, num_policies: int = 1) -> Ledger:
    """A ledger with one page per role and all names."""
    return Ledger(num_roles, PHASES, COUNTERS, (*GAUGES, *(epsilon_of(i) for i in range(1, num_policies))))
