"""F25: programs that an env started in sessions of their own go with the role or worker that started them, and at every end."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import fault_fixtures
import pytest
from fault_runs import TIMES, Nursery, Run, assert_all_gone, command, is_alive, until

starter, nursery = fault_fixtures.starter, fault_fixtures.nursery

KILLS = 3
SEED = 20260725
LANES = 2
DETACHED = {
    "world.lanes": LANES,
    "local.actors": 1,
    "local.restarts": 1000,
    "checkpoint.every_steps": 100,
    "replay.warmup_rows": 16,
}
LOOKED = 2  # helpers of the env that is looked at before the run, in a process that is gone with them
KINDS: dict[str, dict[str, Any]] = {
    "inline": {},
    "pool": {"world.kind": "pool", "world.workers": 1, "world.threads": 1},
}


@pytest.mark.parametrize("kind", KINDS)
def test_f25_helpers_go_with_the_process_that_started_them(nursery: Nursery, tmp_path: Path, kind: str) -> None:
    """An actor is killed again and again, or the worker of its pool: only the helpers of the newest one live. At the end none does."""
    hit = ["hit", {"role": "actor", "number": signal.SIGKILL, "count": 1, "gap_s": (0.0, 0.3)}]
    if kind == "pool":
        hit = ["hit_process", {"kind": "pool worker", "number": signal.SIGKILL}]
    acts: list[Any] = [["save_first", {}]]
    for kill in range(KILLS * TIMES):
        acts += [hit, ["wait_for_helpers", {"count": LOOKED + 2 * LANES * (kill + 2)}]]
    plan = {
        "env": "fault_envs:Detached",
        "seed": SEED,
        "settings": DETACHED | KINDS[kind],
        "acts": acts,
    }
    run = nursery.drive(tmp_path, plan)
    assert run.wait(110 * TIMES) == 0, run.err
    assert run.facts["trouble"] == [], run.err
    assert len(helpers(run)) == LOOKED + 2 * LANES * (1 + KILLS * TIMES)
    assert run.facts["helpers"] == helpers(run)[-2 * LANES :], (
        "helpers of an earlier life live, or those of the newest do not"
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda number: signal.Signals(number).name)
@pytest.mark.parametrize("kind", KINDS)
def test_f25_helpers_go_with_the_run(nursery: Nursery, tmp_path: Path, kind: str, number: int) -> None:
    """The fixture looks for them after the test."""
    run = nursery.start(tmp_path, "fault_envs:Detached", {**DETACHED, **KINDS[kind], "steps": 1_000_000})
    until(lambda: run.checkpoint() is not None, 60, lambda: run.err)
    assert len(helpers(run)) == LOOKED + 2 * LANES
    assert [is_alive(pid) for pid in helpers(run)] == [False] * LOOKED + [True] * 2 * LANES
    run.send(number)
    assert run.wait(30) == (130 if number == signal.SIGINT else -number), run.err


def helpers(run: Run) -> list[int]:
    return [int(line) for line in (run.folder / "helpers").read_text().split()]


@pytest.mark.parametrize("number", [0, signal.SIGINT], ids=["end", "SIGINT"])
def test_f25_programs_of_a_sequential_run_end_with_the_command(tmp_path: Path, number: int) -> None:
    """The env steps in the command's own process; what it started is in a session of its own."""
    settings = {**DETACHED, "runtime": "sequential", "steps": 1_000_000 if number else 200}
    run = command(tmp_path, "fault_envs:DetachedPrograms", settings)
    if number:
        until(lambda: run.checkpoint() is not None, 60, lambda: run.err)
        assert all(map(is_alive, helpers(run)))
        run.send(number)
    assert run.wait(60) == (130 if number else 0), run.err
    assert len(helpers(run)) == 2 * LANES  # two of each env
    assert_all_gone(run)
