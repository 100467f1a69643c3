"""Peers are found where they are installed, and those that are missing are named."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import installed
from freewheel.bench.child import Child
from freewheel.errors import ConfigError, FreewheelError

PYTHON = Path(sys.executable)


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


def test_a_peer_that_is_unknown_ends_its_process_with_its_name() -> None:
    with pytest.raises(FreewheelError, match=r"ended with exit code 1.*\n(.*\n)*.*KeyError: 'nobody'"):
        Child("nobody", installed.program(PYTHON, "replay_worker", "nobody"))
