"""Fault points: named places where tests have a role killed or stopped, because random moments miss small windows.

`FREEWHEEL_FAULT_POINTS="actor-0 commit 30, actor-0 write 5 STOP, supervisor spawn 2"`: a role, a point, the arrival there that is its last,
and the signal if it is not KILL. The n-th entry of a role is for its n-th life; a life without one is left alone.
"""

from __future__ import annotations

import os
import re
import signal

from freewheel import _core
from freewheel.errors import ConfigError

PLAN = "FREEWHEEL_FAULT_POINTS"
ROLES = re.compile(r"supervisor|sequential|learner|compiler|target|(actor|worker)-\d+")

reach = _core.reach_point


def arm(role: str, life: int) -> None:
    """What the plan has for this life of a role; nothing where there is no plan."""
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
        f"{PLAN} has the entry {' '.join(entry)!r}; it takes a role (supervisor, actor-0, learner and so on), a point ({', '.join(_core.point_names())}), the number of "
        "the arrival and perhaps a signal, as in 'actor-0 commit 30 STOP'."
    )


def _signal(word: str = "KILL") -> int:
    try:
        return signal.Signals[f"SIG{word}"]
    except KeyError:
        raise ConfigError(
            f"{PLAN} names the signal {word}, which does not exist here. Use KILL, STOP or INT."
        ) from None
