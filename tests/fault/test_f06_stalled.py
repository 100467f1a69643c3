"""F06: a role that shows no sign of life is named, ended and replaced; two writers of a lane never write."""

from __future__ import annotations

import signal
from pathlib import Path

import fault_fixtures
from fault_runs import TIMES, Nursery

starter, nursery = fault_fixtures.starter, fault_fixtures.nursery

STALLS = 3  # of actors, and one of the learner
SEED = 20260606
SETTINGS = {
    "local.restarts": 1000,
    "local.stall_s": 1.0,
    "local.step_timeout_s": 1.0,
    "local.free": True,
    "checkpoint.every_steps": 1000,
    "replay.rows": 4_000_000,
    "world.kwargs": '{"pause_s": 0.0005}',
}


def test_f06_roles_that_were_stopped_are_replaced(nursery: Nursery, tmp_path: Path) -> None:
    for part in range(TIMES):
        check(nursery, tmp_path / str(part), SEED + part)


POINTS = ("reserve", "write", "commit")


def test_f06_roles_that_stop_at_named_points_are_replaced(nursery: Nursery, tmp_path: Path) -> None:
    """Actors before, in and after a row; then the learner with new weights half on the board."""
    actor = [f"actor-{i % 2} {point} {10 + i} STOP" for i, point in enumerate(POINTS * TIMES)]
    learner = ["learner publish-begin 3 STOP", "learner ckpt-rename 1 STOP"]
    plan = {
        "env": "fault_envs:Numbered",
        "settings": SETTINGS,
        "environment": {"FREEWHEEL_FAULT_POINTS": ", ".join(actor + learner)},
        "acts": [["wait_for_deaths", {"count": len(actor + learner)}]],
    }
    run = nursery.drive(tmp_path, plan)
    assert run.wait(110 * TIMES) == 0, run.err
    facts = run.facts
    assert facts["trouble"] == [], run.err
    assert facts["lives"]["actor-0"] + facts["lives"]["actor-1"] >= len(actor), run.err
    assert facts["lives"]["learner"] >= len(learner), run.err
    assert run.err.count("the process is stopped by SIGSTOP") >= len(actor + learner), run.err
    assert sum(map(len, facts["rows"].values())) == facts["committed"]
    assert run.checkpoint() is not None


def check(nursery: Nursery, folder: Path, seed: int) -> None:
    plan = {
        "env": "fault_envs:Numbered",
        "seed": seed,
        "settings": SETTINGS,
        "acts": [
            ["save_first", {}],
            ["hit", {"role": "actor", "number": signal.SIGSTOP, "count": STALLS - 1, "gap_s": (0.0, 0.3)}],
            ["hit", {"role": "actor", "number": signal.SIGSTOP, "count": 1, "gap_s": (0.0, 0.1), "works": True}],
            ["hit", {"role": "learner", "number": signal.SIGSTOP, "count": 1, "gap_s": (0.0, 0.3)}],
            ["forge", {}],
        ],
    }
    run = nursery.drive(folder, plan)
    code, where = run.wait(110), f"seed {seed}: "
    facts = run.facts
    assert code == 0, where + run.err
    assert facts["trouble"] == [], where + run.err
    assert len(facts["hits"]) == STALLS + 1, where
    # The old process was gone before the new one began, and the other actors went on meanwhile.
    assert all(hit["old_is_gone"] for hit in facts["hits"]), where
    assert all(hit["others_wrote"] > 0 for hit in facts["hits"]), where
    for hit in facts["hits"]:
        assert f"{hit['name']} has shown no sign of life for " in run.err, where + run.err
    # On a machine that is busy with others a role may seem to stall that was not stopped.
    assert run.err.count("and is replaced. Its stack:") >= STALLS + 1, where + run.err
    # One that was stopped before its first instruction of ours cannot be asked for its stack.
    assert (
        run.err.count("the process is stopped by SIGSTOP") + run.err.count("(the process has not started)")
        >= STALLS + 1
    ), where + run.err
    # Whoever wakes up too late is refused, and nothing of it is in the lanes.
    assert "was given to another writer" in facts["forged"], facts["forged"]
    assert sum(map(len, facts["rows"].values())) == facts["committed"], where
