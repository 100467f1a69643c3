"""Fault points: named places where tests kill or stop a role, because random moments miss small windows.

`FREEWHEEL_FAULT_POINTS="actor-0 commit 30, actor-0 write 5 STOP, supervisor spawn 2"`: a role, a point, the number of the arrival at which the signal comes, and the signal (KILL by
default). The n-th entry of a role is for its n-th life.
"""

from __future__ import annotations

import os
import re
import signal

from freewheel import _core
from freewheel.errors import ConfigError

PLAN = "FREEWHEEL_FAULT_POINTS"
# With several policies, the policy's name comes after the kind: learner-red, worker-red-1.
ROLES = re.compile(r"supervisor|sequential|(learner|compiler|target)(-.+)?|(actor|worker)-(.+-)?\d+")

reach = _core.reach_point


def arm(role: str, life: int) -> None:
    """Sets the fault point of this life of a role, if the plan has one."""
    plan = [_read(entry.split()) for entry in os.environ.get(PLAN, "").split(",") if entry.strip()]
    own = [(point, arrival, number) for who, point, arrival, number in plan if who == role]
    if life < len(own):
        _core.arm_point(*own[life])


def _read(entry: list[str]) -> tuple[str, str, int, int]:
    """Role, point, number of the arrival, and signal."""
    if len(entry) in (3, 4):
        role, point, arrival, word, *_ = *entry, "KILL"
        is_known = ROLES.fullmatch(role) and point in _core.point_names() and f"SIG{word}" in signal.Signals.__members__
        if is_known and arrival.isdigit() and int(arrival) > 0:
            return role, point, int(arrival), signal.Signals[f"SIG{word}"]
    raise ConfigError(
        f"{PLAN} has the entry {' '.join(entry)!r}. Write a role (supervisor, learner, actor-0, ...), a point ({', '.join(_core.point_names())}), the number "
        "of the arrival, and a signal (STOP, INT) if it is not KILL, as in 'actor-0 commit 30 STOP'."
    )
