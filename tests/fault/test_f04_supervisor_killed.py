"""F04, F05: when the supervisor is killed, alone or with its group, nothing is left, and the run can go on later."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

from fault_runs import TIMES, Nursery, Run, assert_all_gone, until

KILLS, GROUP_KILLS = 10, 2
SEED = 20260404
LIFE_S = 3.0  # from the start to well within the training
LONG = {"steps": 1_000_000, "checkpoint.every_steps": 100, "local.actors": 1}


def test_f04_supervisors_killed_at_random_moments(nursery: Nursery, tmp_path: Path) -> None:
    """Two at a time; every fourth lives until it has saved."""
    chance = random.Random(SEED)
    saved: list[Run] = []
    for first in range(0, KILLS * TIMES, 2):
        began = time.monotonic()
        pair = [nursery.start(tmp_path / str(first + i), "fault_envs:Helped", LONG) for i in (0, 1)]
        delays = sorted(chance.uniform(0, LIFE_S) for _ in pair)
        if first % 4 == 0:
            until(lambda run=pair[1]: run.checkpoint() is not None, 60, lambda run=pair[1]: run.err)
            saved.append(pair[1])
        for run, delay in zip(pair, delays, strict=True):
            time.sleep(max(0.0, began + delay - time.monotonic()))
            run.send(signal.SIGKILL)
        for run in pair:
            assert run.wait() == -signal.SIGKILL, f"seed {SEED}, {first}: {run.err}"
            assert_all_gone(run)
    assert any((run.folder / "helpers").exists() for run in saved), "no env had a helper: the test proves nothing"
    goes_on(nursery, saved[-1])


def test_f05_group_and_all_processes_killed_at_once(nursery: Nursery, tmp_path: Path) -> None:
    for number in range(GROUP_KILLS * TIMES):
        run = nursery.start(tmp_path / str(number), "fault_envs:Helped", LONG)
        until(lambda run=run: run.checkpoint() is not None, 60, lambda run=run: run.err)
        if number % 2:
            # As the kernel does when memory is short, but all of them: the warden too.
            for pid in run.processes():
                os.kill(pid, signal.SIGKILL)
        else:
            run.send(signal.SIGKILL, to_group=True)
        assert run.wait() == -signal.SIGKILL
        assert_all_gone(run)


def goes_on(nursery: Nursery, run: Run) -> None:
    saved = run.checkpoint()
    assert saved is not None
    words = ["train", "--resume", run.name(), "--steps", str(saved.step + 400), "--json", "--quiet"]
    again = nursery.call(run.folder, "freewheel.cli.main:main", words)
    assert again.wait() == 0, again.err
    assert f"resumed at step {saved.step:,}" in again.err
    after = again.checkpoint()
    assert after is not None
    assert after.step >= saved.step + 400
