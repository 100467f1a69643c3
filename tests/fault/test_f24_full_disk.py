"""F24: a disk that is full, closed or out of inodes when the run ends costs neither the result nor the policy, and is no success."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fault_runs import path_with_us
from full_disk import CASES, STEPS

HERE = Path(__file__).parent
SPARED = ("full sequential", "full local", "logs", "tiny", "closed", "inodes")


class Cases:
    def __init__(self, folder: Path) -> None:
        (folder / "tmp").mkdir()
        environment = {**os.environ, "PYTHONPATH": path_with_us(), "TMPDIR": str(folder / "tmp")}
        child = ["unshare", "-rm", sys.executable, str(HERE / "full_disk.py"), str(folder), *CASES]
        done = subprocess.run(child, env=environment, capture_output=True, text=True, check=False, timeout=110)
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"case"')]
        self.found: dict[str, Any] = {line["case"]: line for line in lines}
        self.err = dict(re.findall(r"^case (.*)\n((?:(?!case ).*\n)*)", done.stderr, re.MULTILINE))
        assert len(self.found) == len(CASES), done.stderr


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Cases:
    folder = tmp_path_factory.mktemp("full")
    mount = f"mount -t tmpfs -o size=64k tmpfs {folder}"
    if subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True, check=False).returncode:
        pytest.skip("this machine does not let us mount a small disk (unshare -rm)")
    return Cases(folder)


@pytest.mark.parametrize("name", SPARED)
def test_f24_what_was_learned_is_spared_and_the_run_is_no_success(cases: Cases, name: str) -> None:
    found, err = cases.found[name], cases.err[name]
    assert re.match(r"CheckpointError: checkpoint .*step-000000300 could not be saved: ", found["error"]), err
    assert found["run"]["steps"] == STEPS
    assert found["run"]["eval_return_mean"] is not None, "the weights are there: they are evaluated"
    assert found["status"] == "unsaved"
    (spare,) = found["spare"]
    assert f"It was saved in {spare} instead: give that folder to freewheel eval" in found["error"]
    assert (found["mode"], found["eval"]) == ("0o700", 0)
    assert found["act"] in (0, 1)
    assert found["spare_saved"] == ["step-000000300"]
    assert found["left"] == []
    assert "Traceback" not in err, err


def test_f24_it_is_degraded_from_the_third_on(cases: Cases) -> None:
    assert "The run is degraded: 3 checkpoints in a row could not be written." in cases.err["tiny"]


def test_f24_a_log_that_finds_no_room_is_told_once(cases: Cases) -> None:
    err = cases.err["logs"]
    for log in ("metrics.csv", "episodes.csv", "TensorBoard"):
        assert err.count(f"log: {log} cannot be written: No space left on device") <= 1, err
    assert "This log ends here; training goes on." in err
    assert re.search(r"log: .* misses \d+ records", err)


def test_f24_a_result_that_finds_no_room_is_no_success(cases: Cases) -> None:
    found = cases.found["result"]
    assert re.match(r"CheckpointError: .*result\.json cannot be written: No space left", found["error"])
    assert found["run"]["steps"] == STEPS
    assert found["status"] == "finished"
    assert found["saved"] == ["step-000000300"]
    assert found["spare"] == []


def test_f24_a_policy_is_saved_without_rows_for_which_there_is_no_room(cases: Cases) -> None:
    found = cases.found["no room for rows"]
    assert "saved without replay.bin" in found["error"], cases.err["no room for rows"]
    assert found["status"] == "unsaved"
    assert found["saved"] == ["step-000000300"]
    assert found["spare"] == []


def test_f24_if_there_is_no_spare_place_either_that_is_said(cases: Cases) -> None:
    found = cases.found["nowhere"]
    assert "Nor could it be saved elsewhere: " in found["error"]
    assert re.search(r"What was learned since step \d+ is lost", found["error"])
    assert found["status"] == "unsaved"
