"""Children that measure: found, started, asked, and never left behind."""

import os
import time
from pathlib import Path

import pytest

from freewheel.bench import child
from freewheel.bench.buffer_processes import NUMPY
from freewheel.bench.checks import check_names
from freewheel.bench.child import Child, PeerFailed, own_program
from freewheel.bench.worker.window import measure_us
from freewheel.errors import ConfigError

OPEN = {"op": "open", "obs": "f32[8]", "capacity": 600, "lanes": 1, "prioritized": False, "small": False}


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_child_measures_and_ends() -> None:
    with Child("numpy", NUMPY.program) as numpy:
        assert numpy.greeting["ready"] == "numpy"
        numpy.ask(OPEN, 30.0)
        assert numpy.ask({"op": "add", "seconds": 0.001}, 30.0)["us"] > 0
        assert numpy.ask({"op": "uniform", "batch": 32, "seconds": 0.001}, 30.0)["us"] > 0
        pid = numpy._process.pid
    assert is_gone(pid)


def test_what_a_child_leaves_in_its_folder_for_temporary_files_goes_with_it() -> None:
    with Child("numpy", NUMPY.program) as numpy:
        environment = Path(f"/proc/{numpy._process.pid}/environ").read_bytes().split(b"\0")
        (folder,) = [Path(line[7:].decode()) for line in environment if line.startswith(b"TMPDIR=")]
        (folder / "left").mkdir()
    assert not folder.exists()


def test_a_failed_order_carries_the_error_and_leaves_the_child_usable() -> None:
    with Child("numpy", NUMPY.program) as numpy:
        with pytest.raises(PeerFailed, match=r"numpy \(pid \d+\) could not do .*no buffer is open"):
            numpy.ask({"op": "add", "seconds": 0.001}, 30.0)
        assert numpy.ask(OPEN, 30.0)["bytes"] >= 0


def test_a_child_that_cannot_start_tells_its_last_lines() -> None:
    with pytest.raises(PeerFailed, match=r"ended with exit code 1.*\n(.*\n)*.*No module named freewheel.bench.nobody"):
        Child("nobody", own_program("nobody"))


def test_files_of_the_current_directory_do_not_reach_a_child(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise RuntimeError('the wrong json')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Child("numpy", NUMPY.program) as numpy:
        assert numpy.greeting["ready"] == "numpy"


def test_a_child_that_dies_is_noticed() -> None:
    with Child("numpy", NUMPY.program) as numpy:
        os.kill(numpy._process.pid, 9)
        with pytest.raises(PeerFailed, match="ended"):
            numpy.ask(OPEN, 30.0)
        with pytest.raises(PeerFailed, match="ended"):  # by now its pipe is closed for certain
            numpy.ask(OPEN, 30.0)


def test_an_answer_has_a_deadline_and_the_child_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "STOP_TIMEOUT_S", 0.1)
    with Child("numpy", NUMPY.program) as numpy:
        numpy.ask(OPEN, 30.0)
        with pytest.raises(PeerFailed, match="gave no answer within 0 s"):
            numpy.ask({"op": "add", "seconds": 30.0}, 0.05)
        pid, start = numpy._process.pid, time.monotonic()
    assert is_gone(pid)
    assert time.monotonic() - start < 20.0  # it was killed, not waited for


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"unknown peer 'cprb'\. Did you mean 'cpprb'"):
        check_names(["cprb"], ["cpprb", "sb3"], "peer")
    assert check_names(["sb3", "cpprb", "sb3"], ["cpprb", "sb3"], "peer") == ["sb3", "cpprb"]


def test_a_window_counts_every_call() -> None:
    seen = []

    def call() -> None:
        seen.append(time.perf_counter())
        time.sleep(0.001)

    us = measure_us(call, 0.02)
    assert us >= 1000.0  # a sleep is never shorter than asked for
    assert len(seen) >= 2
