"""F16: Ctrl-C and SIGTERM at any moment, from the first import to the last exit function."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import fault_fixtures
import pytest
from fault_runs import TIMES, Nursery, Run, assert_all_gone, command, kill_all, until

starter, nursery = fault_fixtures.starter, fault_fixtures.nursery

SEED = 20261616
TOGETHER = 5  # runs at a time: while some wait, others start
IMPORTS_S, LIFE_S = 3.0, 6.0  # of so many at a time on two cores
END_S, SECOND_END_S = 15.0, 6.0  # 10 and 2 are promised on a machine that has nothing else to do
SHORT = {"steps": 400, "checkpoint.every_steps": 100, "local.actors": 1}
LONG = {"steps": 10**8, "checkpoint.every_steps": 500, "local.actors": 1}
INTERRUPTED = 130


def test_f16_ctrl_c_while_it_is_imported(tmp_path: Path) -> None:
    """The command as a shell starts it, which would not end by itself. While Python starts, the signal's own exit is as good."""
    chance = random.Random(SEED)
    for first in range(0, 10 * TIMES, TOGETHER):
        runs = [command(tmp_path / str(first + i), "fault_envs:Plain", LONG) for i in range(TOGETHER)]
        try:
            interrupt(runs, chance, IMPORTS_S)
            for run in runs:
                code, where = run.wait(4 * END_S), f"seed {SEED}, {first}"  # many at a time: what is lost never ends
                is_python_starting = code == 1 and run.err.rstrip().endswith("KeyboardInterrupt")
                assert code in (INTERRUPTED, -signal.SIGINT) or is_python_starting, f"{where}: code {code}\n{run.err}"
                assert_all_gone(run)
        finally:
            for run in runs:
                if not run.has_ended:
                    kill_all(run)
                    run.wait()


@pytest.mark.parametrize("then", ["raise AttributeError('half imported')", "import fault_envs; Env = fault_envs.Plain"])
def test_f16_a_ctrl_c_that_an_import_drops(tmp_path: Path, then: str) -> None:
    """Python drops exceptions in finalizers and in callbacks from C. The run ends all the same, as interrupted."""
    lines = [
        "import os, signal",
        "try:",
        "    os.kill(os.getpid(), signal.SIGINT)",
        "except KeyboardInterrupt:",
        "    pass",
    ]
    (tmp_path / "drops_it.py").write_text("\n".join([*lines, then, ""]))
    # In the local runtime this process never imports the env.
    sequential = {"steps": 10**8, "checkpoint.every_steps": 500, "runtime": "sequential"}
    run = command(tmp_path, "drops_it:Env", sequential)
    assert run.wait(4 * END_S) == INTERRUPTED, run.err
    assert_all_gone(run)


def test_f16_ctrl_c_at_random_moments(nursery: Nursery, tmp_path: Path) -> None:
    """From the first instruction of the command to its end, alone and to the group as a terminal does it."""
    chance = random.Random(SEED + 1)
    codes = []
    for first in range(0, 15 * TIMES, TOGETHER):
        runs = [nursery.start(tmp_path / str(first + i), "fault_envs:Plain", SHORT) for i in range(TOGETHER)]
        interrupt(runs, chance, LIFE_S)
        for run in runs:
            codes.append(run.wait(END_S))
            # One that had already done everything may end as if nothing had been.
            assert codes[-1] in (INTERRUPTED, 0), f"seed {SEED + 1}, {first}: code {codes[-1]}\n{run.err}"
            assert_clean(run, f"seed {SEED + 1}, {first}")
    assert codes.count(INTERRUPTED) >= len(codes) // 3, codes


def test_f16_ctrl_c_between_a_start_and_its_note(nursery: Nursery, tmp_path: Path) -> None:
    """The process is there, and the supervisor has not noted it yet."""
    plans = [{"FREEWHEEL_FAULT_POINTS": f"supervisor spawn {nth} INT"} for nth in (1, 2)]
    runs = [
        nursery.start(tmp_path / str(i), "fault_envs:Plain", LONG, environment=plan) for i, plan in enumerate(plans)
    ]
    for run in runs:
        assert run.wait(END_S) == INTERRUPTED, run.err
        assert_clean(run, "")


def interrupt(runs: list[Run], chance: random.Random, life_s: float) -> None:
    """Each at a moment of its own, alone or as a terminal does it."""
    began = time.monotonic()
    for run, delay in zip(runs, sorted(chance.uniform(0, life_s) for _ in runs), strict=True):
        time.sleep(max(0.0, began + delay - time.monotonic()))
        run.send(signal.SIGINT, to_group=chance.random() < 0.5)


def test_f16_a_second_ctrl_c_ends_it_at_once(nursery: Nursery, tmp_path: Path) -> None:
    """The env takes a minute to close: one Ctrl-C ends it after the time for that, with a checkpoint; two do not wait."""
    chance = random.Random(SEED + 2)
    for part in range(TIMES):
        names = ["once", *map(str, range(5))]
        runs = [nursery.start(tmp_path / f"{part}-{name}", "fault_envs:Lingers", LONG) for name in names]
        for run in runs:
            until(lambda run=run: has_episodes(run), 60, lambda run=run: run.err)
        once, *twice = runs
        once.send(signal.SIGINT)
        for number, run in enumerate(twice):
            where = f"seed {SEED + 2}, {part}, {number}"
            time.sleep(chance.uniform(0, 0.5))
            run.send(signal.SIGINT)
            time.sleep(chance.uniform(0.15, 0.25))
            run.send(signal.SIGINT)
            assert run.wait(SECOND_END_S) == INTERRUPTED, f"{where}: {run.err}"
            assert "did not end in time" not in run.err, f"{where}: the env was waited for"
            assert_clean(run, where)
        assert once.wait(END_S) == INTERRUPTED, once.err
        assert "did not end in time and was killed" in once.err
        assert_clean(once, "once")
        assert once.checkpoint() is not None, "the env's close cost the checkpoint"


def test_f16_sigterm_ends_it_with_a_checkpoint(nursery: Nursery, tmp_path: Path) -> None:
    run = nursery.start(tmp_path, "fault_envs:Plain", LONG)
    until(lambda: run.checkpoint() is not None, 60, lambda: run.err)
    run.send(signal.SIGTERM)
    assert run.wait(END_S) == 128 + signal.SIGTERM, run.err
    assert_clean(run, "")
    saved = run.checkpoint()
    assert saved is not None
    assert '"steps": ' + str(saved.state["steps"]) in (run.folder / "out").read_text()


def has_episodes(run: Run) -> bool:
    return any(len(path.read_text().splitlines()) > 1 for path in run.folder.glob("runs/*/episodes.csv"))


def assert_clean(run: Run, where: str) -> None:
    assert_all_gone(run)
    run.checkpoint()  # is whole if there is one
    assert list(run.folder.glob("runs/*/checkpoints/.tmp*")) == [], where
    assert "Traceback" not in run.err, f"{where}: {run.err}"
