"""Fault points: what the plan in the environment says, and what is refused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from freewheel.errors import ConfigError
from freewheel.machine import fault_points as points

ARRIVE = """
import sys
from freewheel.machine import fault_points as points
points.arm(sys.argv[1], int(sys.argv[2]))
for n in range(3):
    points.reach("commit")
    print(n, flush=True)
"""


def arrivals(plan: str, role: str, life: int) -> tuple[int, int]:
    """How many of three arrivals a role survives, and its exit code."""
    environment = {**os.environ, points.PLAN: plan}
    command = [sys.executable, "-c", ARRIVE, role, str(life)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    return len(done.stdout.split()), done.returncode


def test_the_nth_entry_of_a_role_is_for_its_nth_life() -> None:
    plan = "actor-0 commit 3, actor-1 commit 1, actor-0 write 1, actor-0 commit 2 TERM"
    assert arrivals(plan, "actor-0", 0) == (2, -signal.SIGKILL)
    assert arrivals(plan, "actor-0", 1) == (3, 0)
    assert arrivals(plan, "actor-0", 2) == (1, -signal.SIGTERM)
    assert arrivals(plan, "actor-0", 3) == (3, 0)
    assert arrivals(plan, "learner", 0) == (3, 0)


@pytest.mark.parametrize(
    "plan", ["actor-0 comit 3", "lerner commit 3", "actor-0 commit", "actor-0 commit 0", "actor-0 commit 1 NOSUCH"]
)
def test_a_plan_that_cannot_be_kept_is_refused(plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(points.PLAN, plan)
    with pytest.raises(ConfigError, match=points.PLAN):
        points.arm("learner", 0)
