"""CPU time and memory of other processes, also of those that are gone."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from freewheel.report.usage import ProcessUsage

TICKS = os.sysconf("SC_CLK_TCK")


def write(
    proc: Path, pid: int, cpu_s: float, pages: int, began: int = 7, name: str = "python", state: str = "R"
) -> None:
    """A process as the kernel shows it: user and kernel time are fields 14 and 15, its begin is field 22."""
    folder = proc / str(pid)
    folder.mkdir(exist_ok=True)
    fields = [state, *["0"] * 10, str(int(cpu_s * TICKS) - 1), "1", *["0"] * 6, str(began), "0", "0"]
    (folder / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}\n")
    (folder / "statm").write_text(f"999 {pages} 0 0 0 0 0\n")


def test_this_process_has_cpu_time_and_memory() -> None:
    usage = ProcessUsage(os.getpid())
    spent = time.process_time()
    assert (usage.cpu_s() or 0) == pytest.approx(spent, abs=0.5)
    assert 10 < (usage.memory_mb() or 0) < 1e5


def test_a_process_that_is_gone_has_nothing() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    usage = ProcessUsage(child.pid)
    assert (usage.memory_mb() or 0) > 0
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # dead, but its entry is still there
    assert (usage.cpu_s(), usage.memory_mb()) == (None, None)
    child.communicate()
    assert (usage.cpu_s(), usage.memory_mb()) == (None, None)
    assert ProcessUsage(child.pid).cpu_s() is None


def test_a_system_without_proc_has_nothing(tmp_path: Path) -> None:
    usage = ProcessUsage(os.getpid(), proc=tmp_path / "absent")
    assert (usage.cpu_s(), usage.memory_mb()) == (None, None)
    assert usage.metrics("learner") == {}


def test_a_name_with_brackets_and_blanks_is_no_trouble(tmp_path: Path) -> None:
    write(tmp_path, 5, 3.0, 10, name="a) (b R 1 2")
    assert ProcessUsage(5, proc=tmp_path).cpu_s() == pytest.approx(3.0)


def test_a_pid_that_was_given_away_is_another_process(tmp_path: Path) -> None:
    write(tmp_path, 5, 3.0, 10)
    usage = ProcessUsage(5, proc=tmp_path)
    write(tmp_path, 5, 9.0, 10, began=8)
    assert (usage.cpu_s(), usage.memory_mb()) == (None, None)


@pytest.mark.parametrize("text", ["", "5 (python) R 1", "garbage"])
def test_a_broken_entry_is_a_process_that_is_gone(tmp_path: Path, text: str) -> None:
    write(tmp_path, 5, 3.0, 10)
    (tmp_path / "5" / "stat").write_text(text)
    assert ProcessUsage(5, proc=tmp_path).cpu_s() is None


def test_rates_are_since_the_last_look(tmp_path: Path) -> None:
    now = [100.0]
    write(tmp_path, 5, 3.0, 1000)
    usage = ProcessUsage(5, lambda: now[0], tmp_path)
    pages_mb = os.sysconf("SC_PAGESIZE") / 1e6
    assert usage.metrics("actor 0") == {"process/actor_0/memory_mb": pytest.approx(1000 * pages_mb)}
    now[0] += 2
    write(tmp_path, 5, 4.0, 3000)
    found = usage.metrics("actor 0")
    assert found["process/actor_0/cpu_share"] == pytest.approx(0.5)
    assert found["process/actor_0/memory_mb"] == pytest.approx(3000 * pages_mb)
    now[0] += 1
    assert usage.metrics("actor 0")["process/actor_0/cpu_share"] == 0


def test_threads_count_in_the_cpu_time_of_their_process() -> None:
    """The time is of the whole process: a thread's work, after it ended, is still in it."""
    work = "import threading; t = threading.Thread(target=lambda: sum(i * i for i in range(3_000_000)));"
    child = subprocess.Popen(
        [sys.executable, "-c", work + "t.start(); t.join(); print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None
        child.stdout.readline()
        assert (ProcessUsage(child.pid).cpu_s() or 0) > 0.05
    finally:
        child.kill()
        child.communicate()
