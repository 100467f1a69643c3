"""F28: a run ends with its terminal as by SIGTERM, and a command ends whatever threads its env leaves."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import time
from pathlib import Path

import fault_fixtures
import pytest
from fault_runs import SMALL, TIMES, Nursery, assert_all_gone, command, flags, kill_all, until

starter, nursery = fault_fixtures.starter, fault_fixtures.nursery

END_S, SECOND_END_S = 15.0, 6.0
LONG = {"steps": 1_000_000, "checkpoint.every_steps": 100}
SEQUENTIAL = {"runtime": "sequential", "local.actors": None, "learner.workers": None}
HUNG_UP = 128 + signal.SIGHUP


@pytest.mark.parametrize("part", range(TIMES))
@pytest.mark.parametrize("how", ["local", "sequential", "shell"])
def test_f28_a_run_ends_with_its_terminal_with_a_checkpoint(
    nursery: Nursery, tmp_path: Path, how: str, part: int
) -> None:
    """The terminal is closed, or the shell on it is killed."""
    end, slave = pty.openpty()
    settings = SMALL | LONG | (SEQUENTIAL if how == "sequential" else {})
    words = ["train", "fault_envs:Plain", "--preset", "none", *flags(settings)]
    given = {"terminal": os.ttyname(slave), "words": words, "has_shell": how == "shell"}
    os.set_blocking(end, False)
    try:
        run = nursery.call(tmp_path, "fault_terminal:main", given, {"TERM": "xterm"})
        until(lambda: drained(end) and run.checkpoint() is not None, 60, "no checkpoint")
        os.close(slave)
        if how == "shell":
            run.send(signal.SIGKILL)
            until((tmp_path / "code").exists, END_S, "the run did not end with its shell")
    finally:
        os.close(end)
    if how != "shell":
        assert run.wait(END_S) == HUNG_UP
    assert_all_gone(run)
    assert (tmp_path / "code").read_text() == str(HUNG_UP)
    (status,) = (json.loads(path.read_text()) for path in tmp_path.glob("runs/*/status.json"))
    saved = run.checkpoint()
    assert saved is not None
    assert (status["status"], status["steps"]) == ("stopped", saved.state["steps"])


def drained(end: int) -> bool:
    """A terminal that nobody reads holds up its writers."""
    with contextlib.suppress(BlockingIOError):
        os.read(end, 1 << 16)
    return True


@pytest.mark.parametrize("runtime", ["local", "sequential"])
def test_f28_threads_of_an_env_do_not_keep_the_command_alive(tmp_path: Path, runtime: str) -> None:
    settings = {"steps": 200} | (SEQUENTIAL if runtime == "sequential" else {})
    run = command(tmp_path, "fault_envs:Threaded", settings)
    try:
        assert run.wait(60) == 0, run.err
    finally:
        kill_all(run)
        run.wait(10)
    assert json.loads((tmp_path / "out").read_text())["steps"] >= 200


def test_f28_two_ctrl_c_end_a_command_whose_env_does_not_close(tmp_path: Path) -> None:
    run = command(tmp_path, "fault_envs:Stubborn", LONG | SEQUENTIAL)
    try:
        until(lambda: run.checkpoint() is not None, 60, lambda: run.err)
        run.send(signal.SIGINT)
        time.sleep(0.3)
        run.send(signal.SIGINT)
        assert run.wait(SECOND_END_S) == 130, run.err
    finally:
        kill_all(run)
        run.wait(10)
