"""Where a machine has no recording: the base commit runs in an environment of its own, and what it gives is kept here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import golden_base
import pytest
from golden_base import builds
from golden_cases import CASES

BASE = golden_base.BASE[:7]
MADE = {name: {"case": golden_base.case_key(case), "values": {}, "trace": {}} for name, case in CASES.items()}


@pytest.fixture
def no_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine that nobody has recorded yet."""
    monkeypatch.setattr(golden_base, "LOCAL", tmp_path / "local")
    monkeypatch.setattr(golden_base, "machine_key", lambda: "another machine")
    return tmp_path


def test_a_machine_without_a_recording_makes_one_and_keeps_it(
    no_recording: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert golden_base.recorded() is None
    monkeypatch.setattr(golden_base, "record_base", lambda: MADE)
    assert golden_base.recorded_or_made() == MADE
    monkeypatch.setattr(golden_base, "record_base", None)  # would fail if it were called
    assert golden_base.recorded_or_made() == MADE


def test_a_recording_of_another_case_does_not_count(no_recording: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = {"another machine": {**MADE, "dqn": {**MADE["dqn"], "case": "of other settings"}}}
    monkeypatch.setattr(golden_base, "COMMITTED", no_recording / "recordings.json")
    (no_recording / "recordings.json").write_text(json.dumps(held))
    assert golden_base.recorded() is None
    (no_recording / "recordings.json").write_text(json.dumps({"another machine": MADE}))
    assert golden_base.recorded() == MADE


def test_what_is_committed_is_of_the_cases_there_are() -> None:
    for key, records in json.loads(golden_base.COMMITTED.read_text()).items():
        stale = [name for name in CASES if not golden_base.is_current(name, records.get(name, {}))]
        assert not stale, f"{key}: run python tests/golden record"


def test_without_history_the_reason_is_told(no_recording: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builds, "ROOT", no_recording)
    with pytest.raises(builds.BuildError, match=f"has no git history, so commit {BASE} cannot be built"):
        golden_base.recorded_or_made()
    (no_recording / ".git").mkdir()
    with pytest.raises(builds.BuildError, match=f"commit {BASE} is not in the git history"):
        golden_base.recorded_or_made()


def test_another_environment_has_its_own_package_and_our_dependencies(tmp_path: Path) -> None:
    site = builds._make_environment(tmp_path / "env")
    (site / "freewheel").mkdir()
    (site / "freewheel" / "__init__.py").write_text("")
    script = "import freewheel, gymnasium; print(freewheel.__file__)"
    command = [str(builds.interpreter(tmp_path)), "-c", script]
    found = subprocess.run(command, env=builds.clean_environment(), capture_output=True, text=True, check=True).stdout
    assert found.strip() == str(site / "freewheel" / "__init__.py")


def test_a_process_of_its_own_gives_the_same_values() -> None:
    held: dict[str, Any] | None = golden_base.recorded()
    if held is None:
        pytest.skip(f"no golden hashes for {golden_base.machine_key()}")
    found = golden_base.run_with(Path(sys.executable), ["appo"])["appo"]
    assert found == {name: value for name, value in held["appo"].items() if name != "case"}
