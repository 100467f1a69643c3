"""F29: a command under limits that are too low ends with one line: which limit, its numbers, and the cure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fault_fixtures
import pytest
from fault_fixtures import Starter
from fault_runs import SMALL, TIMES, Run, flags, until

starter = fault_fixtures.starter
nursery = fault_fixtures.nursery

LOCAL = {**SMALL, "steps": 400}
ALONE = {name: value for name, value in LOCAL.items() if not name.startswith(("local.", "learner.workers"))}
SEQUENTIAL = {**ALONE, "runtime": "sequential"}
POOL = {**SEQUENTIAL, "world.kind": "pool", "world.workers": 2, "world.threads": 1}


def start(nursery: Starter, folder: Path, settings: dict[str, Any], **limits: Any) -> Run:
    words = ["train", "fault_envs:Plain", "--preset", "none", "--json", "--quiet", *flags(settings)]
    return nursery.call(folder, "fault_limits:main", {"words": words, **limits})


def refused(run: Run, words: str) -> None:
    """One line, from before anything is left behind."""
    assert run.wait(100) == 2, run.err
    assert re.fullmatch(rf"ConfigError: [^\n]*{words}[^\n]*\n", run.err), run.err
    assert not (run.folder / "runs").exists() or not list((run.folder / "runs").iterdir())


@pytest.mark.parametrize("settings", [LOCAL, POOL], ids=["local", "pool"])
def test_f29_24_open_files_are_too_few(settings: dict[str, Any], nursery: Starter, tmp_path: Path) -> None:
    refused(
        start(nursery, tmp_path, settings, nofile=24), r"needs about \d+ open files, and the limit is 24 \(ulimit -n\)"
    )


@pytest.mark.parametrize("most", range(4, 24, 1 if TIMES > 1 else 4))
def test_f29_any_number_of_open_files_is_enough_or_is_named(most: int, nursery: Starter, tmp_path: Path) -> None:
    run = start(nursery, tmp_path, SEQUENTIAL, nofile=most)
    if run.wait(100) != 0:
        refused(run, rf"{most} \(ulimit -n\)")


@pytest.mark.parametrize("settings", [LOCAL, POOL], ids=["local", "pool"])
def test_f29_a_folder_of_temporary_files_with_a_long_name(
    settings: dict[str, Any], nursery: Starter, tmp_path: Path
) -> None:
    run = start(nursery, tmp_path, settings, tmpdir=str(tmp_path / ("t" * 220)))
    refused(run, r"name of 2\d\d characters is too long .*Set TMPDIR")


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group of processes."""
    for root in (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup")):
        own = root / "freewheel-test"
        try:
            own.mkdir()
        except OSError:
            continue
        if (own / "pids.max").exists():
            break
        own.rmdir()
    else:
        pytest.skip("this user cannot make control groups of processes")
    try:
        yield own
    finally:
        until(lambda: not (own / "cgroup.procs").read_text(), 20, "processes are left in the control group")
        own.rmdir()


@pytest.mark.parametrize("most", [1, 4, 7] if TIMES == 1 else range(1, 12))
@pytest.mark.parametrize("settings", [SEQUENTIAL, LOCAL, POOL], ids=["sequential", "local", "pool"])
def test_f29_any_number_of_processes_is_enough_or_is_named(
    settings: dict[str, Any], most: int, group: Path, nursery: Starter, tmp_path: Path
) -> None:
    (group / "pids.max").write_text(str(most))
    run = start(nursery, tmp_path, settings, group=str(group))
    code = run.wait(100)
    if most <= 7:  # with more a local run may have enough, too
        assert (code == 0) == (settings is SEQUENTIAL and most > 1), run.err
    if code != 0:
        refused(run, rf"allows {most} \(pids.max\)")
