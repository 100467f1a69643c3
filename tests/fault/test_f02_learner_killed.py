"""F02: a learner that is killed goes on from the newest whole checkpoint, with the replay as it was and without a burst."""

from __future__ import annotations

import random
import re
import signal
from pathlib import Path
from typing import Any

import fault_fixtures
import pytest
from fault_runs import TIMES, Nursery, Run

starter, nursery = fault_fixtures.starter, fault_fixtures.nursery

KILLS = 5
SEED = 20260202
BATCH, RATIO = 8, 1.0


def test_f02_learners_killed_at_random_moments(nursery: Nursery, tmp_path: Path) -> None:
    for part in range(TIMES):
        check(nursery, tmp_path / str(part), SEED + part)


def check(nursery: Nursery, folder: Path, seed: int) -> None:
    plan = {
        "env": "fault_envs:Numbered",
        "seed": seed,
        "settings": {
            "local.restarts": 1000,
            "replay.rows": 4_000_000,
            "checkpoint.every_steps": 300,
            "world.kwargs": '{"pause_s": 0.0005}',
        },
        "acts": [
            ["save_first", {}],
            ["hit", {"role": "learner", "number": signal.SIGKILL, "count": KILLS, "gap_s": (0.0, 0.6)}],
        ],
    }
    run = nursery.drive(folder, plan)
    code, where = run.wait(110), f"seed {seed}: "
    facts = run.facts
    assert code == 0, where + run.err
    # Versions, steps, updates and rows never went back, through all lives.
    assert facts["trouble"] == [], where + run.err
    assert len(facts["hits"]) == facts["deaths"] == facts["lives"]["learner"] == KILLS, where
    assert facts["lives"]["actor-0"] == facts["lives"]["actor-1"] == 0, where + "an actor was restarted too"
    # No actor stopped writing for it, and no row was lost.
    assert facts["begun"] == facts["counted"] == facts["committed"] == sum(map(len, facts["rows"].values())), where
    # One that is killed again before it has loaded anything says nothing.
    went_on_from = [int(step) for step in re.findall(r"learner continues from step-(\d+)", run.err)]
    assert 1 <= len(went_on_from) <= KILLS, where + run.err
    assert went_on_from == sorted(went_on_from), where + "an older checkpoint was taken"
    assert went_on_from[-1] >= facts["hits"][-1]["saved"]["step"], where + "an older checkpoint was taken"
    assert "begins with new weights" not in run.err, where
    # While it was dead the actors were held back, so that nothing had to be made up for in a burst.
    slack_calls = 4 + 4 * 4 * RATIO / BATCH
    assert facts["most_ahead"] <= 0, where
    assert facts["most_due"] <= slack_calls + 3, where
    assert facts["ratio"] == pytest.approx(RATIO, rel=0.05), where
    saved = run.checkpoint()
    assert saved is not None
    # Weights and optimiser are of the same update: its own count says how often it was stepped.
    assert facts["hits"][-1]["saved"]["updates"] <= saved.state["updates"] <= saved.state["all_updates"], where
    assert float(saved.tensors["optimizer.decay"][1]) == pytest.approx(0.999 ** saved.state["updates"], rel=1e-3), where


POINTS = (
    "insert",
    "tree-update",
    "publish-begin",
    "publish-end",
    "ckpt-write",
    "ckpt-fsync",
    "ckpt-rename",
    "ckpt-dirsync",
)


def test_f02_learners_killed_at_named_points(nursery: Nursery, tmp_path: Path) -> None:
    """In the middle of taking rows in, of new priorities, of new weights and of a checkpoint, and at the first instruction."""
    for part in range(TIMES):
        check_points(nursery, tmp_path / str(part), SEED + part)


def check_points(nursery: Nursery, folder: Path, seed: int) -> None:
    chance, where = random.Random(seed), f"seed {seed}: "
    entries = [
        "learner spawn 1",
        *(f"learner {point} {chance.randint(1, 3)}" for point in chance.sample(POINTS, len(POINTS))),
    ]
    plan = {
        "env": "fault_envs:Numbered",
        "settings": {
            "replay.prioritized": True,
            "local.restarts": 1000,
            "replay.rows": 4_000_000,
            "checkpoint.every_steps": 150,
            "local.publish_every_updates": 4,
            "world.kwargs": '{"pause_s": 0.0005}',
        },
        "environment": {"FREEWHEEL_FAULT_POINTS": ", ".join(entries)},
        "acts": [["wait_for_deaths", {"count": len(entries)}]],
    }
    run = nursery.drive(folder, plan)
    assert run.wait(110) == 0, where + run.err
    facts = run.facts
    # Versions, steps, updates and rows never went back, through all lives.
    assert facts["trouble"] == [], where + run.err
    assert facts["deaths"] == facts["lives"]["learner"] == len(entries), where + run.err
    assert facts["lives"]["actor-0"] == facts["lives"]["actor-1"] == 0, where
    assert facts["begun"] == facts["counted"] == facts["committed"] == sum(map(len, facts["rows"].values())), where
    assert facts["ratio"] == pytest.approx(RATIO, rel=0.05), where
    went_on_from = [int(step) for step in re.findall(r"learner continues from step-(\d+)", run.err)]
    assert went_on_from == sorted(went_on_from), where + "an older checkpoint was taken"
    saved = run.checkpoint()
    assert saved is not None
    assert list(saved.path.parent.glob(".*")) == [], where + "a dead writer's file was left"
    assert float(saved.tensors["optimizer.decay"][1]) == pytest.approx(0.999 ** saved.state["updates"], rel=1e-3), where


WORKERS = {
    "local.restarts": 1000,
    "local.stall_s": 1.0,
    "local.actors": 1,
    "learner.workers": 2,
    "checkpoint.every_steps": 50,
}


def test_f02_a_worker_that_is_killed_or_stopped_is_replaced(nursery: Nursery, tmp_path: Path) -> None:
    """The learner waits for the new one, and training goes on at the same ratio."""
    run = hit_workers(nursery, tmp_path, ("worker", signal.SIGKILL, 2 * TIMES), ("worker", signal.SIGSTOP, TIMES))
    assert run.facts["lives"]["actor-0"] == run.facts["lives"]["learner"] == 0, run.err
    assert (
        len(re.findall(r"worker-1 \(pid \d+\) died by SIGKILL at step [\d,]+; restart \d+ of ", run.err)) >= 2 * TIMES
    ), run.err
    # Its learner may miss the gradient before the supervisor sees that it is stopped.
    assert re.search("worker-1 (has been stopped for |gave no gradient in time)", run.err), run.err


def test_f02_a_learner_with_workers_is_killed_and_goes_on_with_them(nursery: Nursery, tmp_path: Path) -> None:
    run = hit_workers(nursery, tmp_path, ("learner", signal.SIGKILL, 2 * TIMES), ("worker", signal.SIGKILL, TIMES))
    assert run.facts["lives"]["actor-0"] == 0, run.err
    assert run.facts["lives"]["learner"] == 2 * TIMES, run.err
    assert len(re.findall(r"worker-1 \(pid \d+\) died", run.err)) == TIMES, run.err


@pytest.mark.timeout(300)
def test_f02_the_process_ahead_of_a_learner_is_killed_or_stopped(nursery: Nursery, tmp_path: Path) -> None:
    """Compiled updates go on with it, without it, and with the one that takes its place; so does a learner after its death."""
    settings = {**WORKERS, "learner.workers": 1, "learner.compile": "on", "learner.updates_per_call": 2}
    hits = (("target", signal.SIGKILL, TIMES), ("target", signal.SIGSTOP, TIMES), ("learner", signal.SIGKILL, 1))
    run = hit_workers(nursery, tmp_path, *hits, settings=settings)
    assert (run.facts["lives"]["actor-0"], run.facts["lives"]["learner"]) == (0, 1), run.err
    assert len(re.findall(r"target \(pid \d+\) died by SIGKILL at step [\d,]+; restart \d+ of ", run.err)) >= TIMES, (
        run.err
    )
    assert "target has been stopped for " in run.err, run.err
    assert run.err.count("Compiled updates from update ") == 2, run.err


def hit_workers(nursery: Nursery, folder: Path, *hits: tuple[str, int, int], settings: dict[str, Any] = WORKERS) -> Run:
    acts = [
        ["hit", {"role": role, "number": number, "count": count, "gap_s": (0.0, 0.4)}] for role, number, count in hits
    ]
    plan = {"env": "fault_envs:Plain", "seed": SEED, "settings": settings, "acts": [["save_first", {}], *acts]}
    run = nursery.drive(folder, plan)
    assert run.wait(250) == 0, run.err
    assert run.facts["trouble"] == [], run.err
    assert run.facts["ratio"] == pytest.approx(RATIO, rel=0.05)
    assert run.checkpoint() is not None
    return run
