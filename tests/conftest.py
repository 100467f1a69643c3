"""Every test leaves the machine as it found it: no process, thread, descriptor, shared memory or file stays behind (F17)."""

from __future__ import annotations

import gc
import getpass
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from multiprocessing import forkserver, resource_tracker
from multiprocessing.util import Finalize
from pathlib import Path

import pytest

from freewheel.machine.forkserver import start_forkserver
from freewheel.machine.temp_folder import sweep

FAILED = pytest.StashKey[bool]()
LEAVE_S = 5.0  # threads and reaped children may take a moment to go


def pytest_configure(config: pytest.Config) -> None:
    """Each process that runs tests has a folder of its own for temporary files: what it finds there, its tests have made.

    Its name is short, for the forkserver listens at a path in it. What pytest and torch keep there between two sessions stays.
    """
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        return  # it only tells the workers of xdist what to do, and they inherit its environment
    shared = tempfile.gettempdir()
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", shared)
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.join(shared, f"torchinductor_{getpass.getuser()}"))
    own = tempfile.mkdtemp(prefix="fw-")
    os.environ["TMPDIR"] = tempfile.tempdir = own
    # The key that signs is made here, not in the user's home.
    os.environ["XDG_CONFIG_HOME"] = os.path.join(own, "config")
    os.mkdir(os.environ["XDG_CONFIG_HOME"], 0o700)
    # After multiprocessing has removed its folder there (-100), which has to exist for that.
    Finalize(None, shutil.rmtree, (own, True), exitpriority=-200)


def children() -> set[int]:
    """Processes below this one, whoever started them; the forkserver and its tracker serve the whole session."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, rest = stat.read_text().split(" (", 1)
            parents.setdefault(int(rest.rsplit(")", 1)[1].split()[1]), []).append(int(pid))
        except OSError:
            continue  # it ended while we looked
    keep = {forkserver._forkserver._forkserver_pid, resource_tracker._resource_tracker._pid}
    found, new = set(), [os.getpid()]
    while new:
        new = [child for parent in new for child in parents.get(parent, []) if child not in keep]
        found.update(new)
    return found | {child for pid in keep if pid for child in parents.get(pid, []) if child not in keep}


def threads() -> set[str]:
    """Python's threads, and those of the core, which name themselves."""
    found = {f"{t.name} ({t.native_id})" for t in threading.enumerate()}
    for task in Path("/proc/self/task").iterdir():
        try:
            name = (task / "comm").read_text().strip()
        except OSError:
            continue
        if name.startswith("fw-"):
            found.add(f"{name} ({task.name})")
    return found


def descriptors() -> dict[str, str]:
    found = {}
    for fd in Path("/proc/self/fd").iterdir():
        try:
            found[fd.name] = os.readlink(fd)
        except OSError:
            continue
    return found


def segments() -> list[str]:
    """Shared memory that is mapped here, or has a name that tells of us (others may run beside this test)."""
    mapped = {line.split(None, 5)[5] for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:" in line}
    named = {
        str(path) for path in Path("/dev/shm").iterdir() if str(os.getpid()) in path.name or "freewheel" in path.name
    }
    return sorted(mapped | named)


def files() -> set[str]:
    """Files and folders for temporary use. Whoever made them under this folder, a test did; torch's own cache is no run's."""
    return {name for name in os.listdir(tempfile.gettempdir()) if not name.startswith("torchinductor_")}


State = tuple[set[int], set[str], dict[str, str], list[str], set[str]]


def state() -> State:
    return children(), threads(), descriptors(), segments(), files()


def left_behind(before: State) -> str:
    gc.collect()
    processes = children() - before[0]
    kept_open = {fd: target for fd, target in descriptors().items() if fd not in before[2]}
    kept_mapped = [name for name in segments() if name not in before[3]]
    parts = {
        "processes": processes,
        "threads": threads() - before[1],
        "descriptors": kept_open,
        "segments": kept_mapped,
        "files": files() - before[4],
    }
    return ", ".join(f"{what} {value}" for what, value in parts.items() if value)


frozen_modules = [0]


def freeze_imports() -> None:
    """What is imported stays: the collection after each test need not look at it again (150 ms with the whole of torch)."""
    if len(sys.modules) > frozen_modules[0]:
        gc.collect()
        gc.freeze()
        frozen_modules[0] = len(sys.modules)


def pytest_collection_finish(session: pytest.Session) -> None:
    freeze_imports()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[pytest.TestReport]:
    report = yield
    if call.when == "call":
        item.stash[FAILED] = report.failed
    return report


@pytest.fixture(autouse=True)
def leaves_nothing_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    start_forkserver()  # its pipe and pid belong to the session, not to the first test that needs it
    resource_tracker.ensure_running()
    before = state()
    yield
    if request.node.stash.get(FAILED, False):
        return  # its traceback keeps its objects alive
    sweep(tempfile.gettempdir())  # as the next start of a run does, for those that a test has killed
    deadline = time.monotonic() + LEAVE_S
    while (left := left_behind(before)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left, f"the test left behind: {left}"
    freeze_imports()
