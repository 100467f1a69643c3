"""F04, F05: when the supervisor is killed, alone or with its group, nothing is left, and the run can go on later."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path

import fault_fixtures
from fault_runs import TIMES, Nursery, Run, assert_all_gone, until

starter, nursery = fault_fixtures.starter, fault_fixtures.nursery

KILLS, GROUP_KILLS = 10, 2
SEED = 20260404
TOGETHER = 5
LIFE_S = 6.0  # from the start to well within the training, with so many at a time on two cores
LONG = {"steps": 1_000_000, "checkpoint.every_steps": 100, "local.actors": 1}


def test_f04_supervisors_killed_at_random_moments(nursery: Nursery, tmp_path: Path) -> None:
    """Some at a time, one of them not before it has saved."""
    chance = random.Random(SEED)
    for first in range(0, KILLS * TIMES, TOGETHER):
        began = time.monotonic()
        runs = [nursery.start(tmp_path / str(first + i), "fault_envs:Helped", LONG) for i in range(TOGETHER)]
        for run, delay in zip(runs, sorted(chance.uniform(0, LIFE_S) for _ in runs), strict=True):
            time.sleep(max(0.0, began + delay - time.monotonic()))
            if run is runs[-1]:
                until(lambda run=run: run.checkpoint() is not None, 60, lambda run=run: run.err)
                assert (run.folder / "helpers").exists(), "no env had a helper: the test proves nothing"
            run.send(signal.SIGKILL)
        for run in runs:
            assert run.wait() == -signal.SIGKILL, f"seed {SEED}, {first}: {run.err}"
            assert_all_gone(run)
    goes_on(nursery, runs[-1])


def test_f04_supervisors_killed_between_a_start_and_its_note(nursery: Nursery, tmp_path: Path) -> None:
    """The process is there, and the warden has not heard of it yet."""
    for part in range(TIMES):
        runs = [
            nursery.start(tmp_path / f"{part}-{nth}", "fault_envs:Helped", LONG, environment=dies_at_spawn(nth))
            for nth in (1, 2)
        ]
        for run in runs:
            assert run.wait() == -signal.SIGKILL, run.err
            assert_all_gone(run)


def dies_at_spawn(nth: int) -> dict[str, str]:
    return {"FREEWHEEL_FAULT_POINTS": f"supervisor spawn {nth}"}


def kill_at_once(run: Run) -> None:
    """As the kernel does when memory is short, but all of them: the warden too. Stopped first, or the supervisor would start others
    in place of those that die before it."""
    stopped: set[int] = set()
    while new := run.processes() - stopped:
        _send(new, signal.SIGSTOP)
        stopped |= new
    _send(stopped, signal.SIGKILL)


def _send(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def test_f05_group_and_all_processes_killed_at_once(nursery: Nursery, tmp_path: Path) -> None:
    for number in range(GROUP_KILLS * TIMES):
        run = nursery.start(tmp_path / str(number), "fault_envs:Helped", LONG)
        until(lambda run=run: run.checkpoint() is not None, 60, lambda run=run: run.err)
        if number % 2:
            kill_at_once(run)
        else:
            run.send(signal.SIGKILL, to_group=True)
        assert run.wait() == -signal.SIGKILL
        assert_all_gone(run)


def test_f05_the_forkserver_killed(nursery: Nursery, tmp_path: Path) -> None:
    """All roles die with the process they come from, and come again from another, which is marked and masked like the first."""
    settings = {"checkpoint.every_steps": 100, "local.actors": 1, "local.restarts": 1000}
    acts = [["save_first", {}], *[["kill_forkserver", {}]] * 2 * TIMES]
    run = nursery.drive(tmp_path, {"env": "fault_envs:Helped", "settings": settings, "acts": acts})
    assert run.wait() == 0, run.err
    assert run.facts["trouble"] == [], run.err
    assert run.facts["lives"]["learner"] == run.facts["lives"]["actor-0"] == 2 * TIMES, run.err
    assert run.err.count("; restart ") == 4 * TIMES, run.err
    assert_all_gone(run)


def goes_on(nursery: Nursery, run: Run) -> None:
    saved = run.checkpoint()
    assert saved is not None
    words = ["train", "--resume", run.name(), "--steps", str(saved.step + 400), "--json", "--quiet"]
    again = nursery.call(run.folder, "freewheel.cli.main:main", words)
    assert again.wait() == 0, again.err
    assert f"Resumed at step {saved.step:,}" in again.err
    after = again.checkpoint()
    assert after is not None
    assert after.step >= saved.step + 400
