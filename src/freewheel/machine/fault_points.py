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
    plan = [entry.split() for entry in os.environ.get(PLAN, "").split(",") if entry.strip()]
    for entry in plan:
        _check(entry)
    own = [entry for entry in plan if entry[0] == role]
    if life < len(own):
        _, point, arrival, *word = own[life]
        _core.arm_point(point, int(arrival), _signal(*word))


def _check(entry: list[str]) -> None:
    is_whole = len(entry) in (3, 4) and ROLES.fullmatch(entry[0]) and entry[1] in _core.point_names()
    if is_whole and entry[2].isdigit() and int(entry[2]) > 0:
        _signal(*entry[3:])
        return
    raise ConfigError(
        f"{PLAN} has the entry {' '.join(entry)!r}. Write a role (supervisor, learner, actor-0, ...), a point ({', '.join(_core.point_names())}), the number "
        "of the arrival, and a signal if it is not KILL, as in 'actor-0 commit 30 STOP'."
    )


def _signal(word: str = "KILL") -> int:
    try:
        return signal.Signals[f"SIG{word}"]
    except KeyError:
        raise ConfigError(f"{PLAN} has the signal {word}, which does not exist. Use KILL, STOP or INT.") from None
