"""Children that measure: found, started, asked, and never left behind."""

import os
import sys
import time
from pathlib import Path

import pytest

from freewheel.bench import child, installed
from freewheel.bench.child import Child, PeerFailed
from freewheel.bench.peers.window import measure_us
from freewheel.errors import ConfigError

PYTHON = Path(sys.executable)
OPEN = {"op": "open", "obs": "f32[8]", "capacity": 600, "lanes": 1, "prioritized": False, "small": False}


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_child_measures_and_ends() -> None:
    with Child("numpy", PYTHON, "replay_worker", "numpy") as numpy:
        assert numpy.greeting["ready"] == "numpy"
        numpy.ask(OPEN, 30.0)
        assert numpy.ask({"op": "add", "seconds": 0.001}, 30.0)["us"] > 0
        assert numpy.ask({"op": "uniform", "batch": 32, "seconds": 0.001}, 30.0)["us"] > 0
        pid = numpy._process.pid
    assert is_gone(pid)


def test_what_a_child_leaves_in_its_folder_for_temporary_files_goes_with_it() -> None:
    with Child("numpy", PYTHON, "replay_worker", "numpy") as numpy:
        environment = Path(f"/proc/{numpy._process.pid}/environ").read_bytes().split(b"\0")
        (folder,) = [Path(line[7:].decode()) for line in environment if line.startswith(b"TMPDIR=")]
        (folder / "left").mkdir()
    assert not folder.exists()


def test_a_failed_order_carries_the_error_and_leaves_the_child_usable() -> None:
    with Child("numpy", PYTHON, "replay_worker", "numpy") as numpy:
        with pytest.raises(PeerFailed, match=r"numpy \(pid \d+\) could not do .*no buffer is open"):
            numpy.ask({"op": "add", "seconds": 0.001}, 30.0)
        assert numpy.ask(OPEN, 30.0)["bytes"] >= 0


def test_a_child_that_cannot_start_tells_its_last_lines() -> None:
    with pytest.raises(PeerFailed, match=r"ended with exit code 1.*\n(.*\n)*.*KeyError: 'nobody'"):
        Child("nobody", PYTHON, "replay_worker", "nobody")


def test_files_of_the_current_directory_do_not_reach_a_child(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise RuntimeError('the wrong json')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Child("numpy", PYTHON, "replay_worker", "numpy") as numpy:
        assert numpy.greeting["ready"] == "numpy"


def test_a_child_that_dies_is_noticed() -> None:
    with Child("numpy", PYTHON, "replay_worker", "numpy") as numpy:
        os.kill(numpy._process.pid, 9)
        with pytest.raises(PeerFailed, match="ended"):
            numpy.ask(OPEN, 30.0)
        with pytest.raises(PeerFailed, match="ended"):  # by now its pipe is closed for certain
            numpy.ask(OPEN, 30.0)


def test_an_answer_has_a_deadline_and_the_child_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "STOP_TIMEOUT_S", 0.1)
    with Child("numpy", PYTHON, "replay_worker", "numpy") as numpy:
        numpy.ask(OPEN, 30.0)
        with pytest.raises(PeerFailed, match="gave no answer within 0 s"):
            numpy.ask({"op": "add", "seconds": 30.0}, 0.05)
        pid, start = numpy._process.pid, time.monotonic()
    assert is_gone(pid)
    assert time.monotonic() - start < 20.0  # it was killed, not waited for


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"unknown peer 'cprb'\. Did you mean 'cpprb'"):
        installed.choose(["cprb"], None)
    assert installed.check_names(["sb3", "cpprb", "sb3"], ["cpprb", "sb3"], "peer") == ["sb3", "cpprb"]


def test_without_the_environment_peers_run_only_when_nobody_named_them() -> None:
    assert installed.choose(None, None) == []
    assert installed.choose(["none"], None) == []
    with pytest.raises(ConfigError, match="run 'make peers'"):
        installed.choose(["cpprb"], None)


def test_a_peer_that_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "installed_peers", lambda python, known: ["sb3"])
    assert installed.choose(None, PYTHON) == ["sb3"]
    with pytest.raises(ConfigError, match="cpprb: not in"):
        installed.choose(["cpprb", "sb3"], PYTHON)


def test_the_environment_is_looked_for_where_the_variable_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FREEWHEEL_PEERS", str(tmp_path))
    with pytest.raises(ConfigError, match="has no bin/python"):
        installed.find_python()
    python = tmp_path / ".venv-peers" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(PYTHON)
    monkeypatch.setenv("FREEWHEEL_PEERS", str(tmp_path / ".venv-peers"))
    assert installed.find_python() == python
    monkeypatch.delenv("FREEWHEEL_PEERS")
    monkeypatch.chdir(tmp_path)
    assert installed.find_python() == python


def test_an_interpreter_that_does_not_run_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not run"):
        installed.installed_peers(tmp_path / "python")


def test_a_window_counts_every_call() -> None:
    seen = []

    def call() -> None:
        seen.append(time.perf_counter())
        time.sleep(0.001)

    us = measure_us(call, 0.02)
    assert us >= 1000.0  # a sleep is never shorter than asked for
    assert len(seen) >= 2
