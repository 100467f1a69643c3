"""F27: the processes that are no actors or learners, killed or stopped: the run goes on with others or without them, and ends."""

from __future__ import annotations

import itertools
import random
import re
import signal
import time
from pathlib import Path
from typing import Any

import fault_fixtures
import pytest
from fault_processes import by_kind, kept_stopped
from fault_runs import TIMES, Nursery, assert_all_gone, until

starter, nursery = fault_fixtures.starter, fault_fixtures.nursery

SEED = 20260727
KILL, STOP = int(signal.SIGKILL), int(signal.SIGSTOP)
SECOND_END_S = 6.0
HARD = {
    "local.actors": 1,
    "local.restarts": 1000,
    "local.stall_s": 1.0,
    "local.step_timeout_s": 2.0,
    "checkpoint.every_steps": 100,
}
POOL = {"world.kind": "pool", "world.workers": 4, "world.threads": 1}
KINDS = ("forkserver", "warden", "tracker", "pool forkserver", "pool worker")
HITS = [(kind, number) for kind in KINDS for number in (STOP, KILL) if (kind, number) != ("forkserver", KILL)]  # F05


def test_f27_each_process_that_is_no_role_is_killed_and_stopped(nursery: Nursery, tmp_path: Path) -> None:
    """One after the other in one run, in another order each time."""
    for part in range(TIMES):
        hits = HITS if part == 0 else random.Random(SEED + part).sample(HITS, len(HITS))
        acts = [["hit_process", {"kind": kind, "number": number}] for kind, number in hits]
        plan = {
            "env": "fault_envs:Detached",
            "seed": SEED + part,
            "settings": HARD | POOL,
            "acts": [["save_first", {}], *acts],
        }
        run, where = nursery.drive(tmp_path / str(part), plan), f"seed {SEED + part}: "
        assert run.wait(110) == 0, where + run.err
        assert run.facts["trouble"] == [], where + run.err
        assert len(run.facts["hits"]) == len(HITS), where
        assert run.facts["begun"] >= run.facts["committed"], where
        assert run.checkpoint() is not None


# A role stops at the point; meanwhile another process is killed or stopped.
POINTS = ("reserve", "write", "commit", "insert", "tree-update", "publish-begin", "publish-end")
SAVES = ("ckpt-write", "ckpt-fsync", "ckpt-rename", "ckpt-dirsync")
AT_POINTS = [
    (f"{'actor-0' if point in POINTS[:3] else 'learner'} {point} {1 if point in SAVES else 30} STOP", kind, number)
    for point, kind, number in itertools.product((*SAVES, *POINTS), KINDS[:3], (KILL, STOP))
]


def test_f27_others_are_hit_while_a_role_is_at_a_named_point(nursery: Nursery, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    chosen = [AT_POINTS[0], ("actor-0 write 30 STOP", "warden", KILL)]
    chosen += chance.sample(AT_POINTS, min(2 * (TIMES - 1), len(AT_POINTS)))
    for number, (entry, kind, sent) in enumerate(chosen):
        plan = {
            "env": "fault_envs:Plain",
            "settings": HARD | {"local.stall_s": 30.0, "replay.prioritized": True},
            "environment": {"FREEWHEEL_FAULT_POINTS": entry},
            "acts": [["hit_while_stopped", {"kind": kind, "number": sent}]],
        }
        run = nursery.drive(tmp_path / str(number), plan)
        assert run.wait(110) == 0, f"{entry}, {kind}: {run.err}"
        assert run.facts["trouble"] == [], f"{entry}, {kind}: {run.err}"
        assert run.checkpoint() is not None


def test_f27_two_ctrl_c_end_a_run_whose_helpers_are_stopped(nursery: Nursery, tmp_path: Path) -> None:
    """The forkserver stays stopped whatever the run does. Nobody waits for it, or for an end that it does not see."""
    for part in range(TIMES):
        for kind in KINDS[:3]:
            run = nursery.start(tmp_path / f"{part}-{kind}", "fault_envs:Lingers", HARD | {"steps": 1_000_000})
            until(lambda run=run: run.checkpoint() is not None, 60, lambda run=run: run.err)
            with kept_stopped(*by_kind(run.pid)[kind]):
                time.sleep(0.3 * part / TIMES)
                run.send(signal.SIGINT)
                time.sleep(0.2)
                run.send(signal.SIGINT)
                assert run.wait(SECOND_END_S) == 130, f"{kind}: {run.err}"
            assert_all_gone(run)


def test_f27_a_forkserver_that_stays_stopped_is_replaced_with_all_roles(nursery: Nursery, tmp_path: Path) -> None:
    run = nursery.start(tmp_path, "fault_envs:Plain", HARD | {"steps": 1_000_000})
    until(lambda: run.checkpoint() is not None, 60, lambda: run.err)
    (before,) = by_kind(run.pid)["forkserver"]
    with kept_stopped(before):
        until(lambda: by_kind(run.pid).get("forkserver", [before]) != [before], 30, lambda: run.err)
    until(lambda: len(by_kind(run.pid).get("role", [])) == 2, 60, lambda: run.err)
    run.send(signal.SIGINT)
    assert run.wait(30) == 130, run.err
    assert "The forkserver was stopped, did not go on, and is replaced" in run.err
    assert re.search(r"learner \(pid \d+\) .*; restart 1 of", run.err), run.err


@pytest.mark.parametrize("number", ["KILL", "STOP"])
def test_f27_a_compiler_that_is_killed_or_stopped_is_done_without(
    nursery: Nursery, tmp_path: Path, number: str
) -> None:
    settings: dict[str, Any] = {**HARD, "learner.compile": "on", "steps": 300}
    environment = {"FREEWHEEL_FAULT_POINTS": f"compiler spawn 1 {number}"}
    run = nursery.start(tmp_path, "fault_envs:Plain", settings, environment=environment)
    assert run.wait(110) == 0, run.err
    assert "could not be compiled (its process died by SIGKILL). Training continues with eager updates." in run.err
    assert ("compiler has been stopped for " in run.err) == (number == "STOP")
