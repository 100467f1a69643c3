"""The processes of a run: how they are marked, started, watched and swept."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing import forkserver as standard
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from freewheel.errors import RoleLost
from freewheel.machine import forkserver, process, temp_folder
from freewheel.machine.guard import Guard

SELF = "freewheel-test"
LIGHT = "freewheel.machine.process"  # loads in no time


def begun(owner: str, end: Connection) -> None:
    """A role that starts a program and forks a process, each in a session of its own, and waits."""
    process.begin_role(owner)
    program = subprocess.Popen(["sleep", "600"], start_new_session=True)
    forked = os.fork()
    if forked == 0:
        os.setsid()
        time.sleep(600)
    end.send((os.getpid(), program.pid, forked))
    time.sleep(600)


@contextlib.contextmanager
def role() -> Iterator[tuple[Any, list[int]]]:
    """Such a role, and all three pids."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("forkserver").Process(
        target=begun, args=(process.owner_id(), theirs), name=SELF
    )
    forkserver.launch(child, preload=LIGHT)
    with ours, theirs:
        assert ours.poll(60)
        pids = list(ours.recv())
    try:
        yield child, pids
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        forkserver.wait_for_end(child)
        child.close()


def environment(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/environ").read_text().split("\0")


def gone(pids: list[int], seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while any(map(process.is_alive, pids)) and time.monotonic() < end:
        time.sleep(0.01)
    return not any(map(process.is_alive, pids))


def test_f25_a_role_its_programs_and_its_forks_have_its_mark() -> None:
    with role() as (_, pids):
        for pid in pids:
            assert f"{process.OWNER}={process.owner_id()}/{pids[0]:010d}" in environment(pid)


def test_f25_a_sweep_takes_what_one_role_left_and_nobody_else() -> None:
    with role() as (first, (first_pid, *left)), role() as (_, others):
        os.kill(first_pid, signal.SIGKILL)
        forkserver.wait_for_end(first)
        assert all(map(process.is_alive, [*left, *others]))
        process.sweep([first_pid])
        assert gone(left)
        assert all(map(process.is_alive, others))


def test_f25_a_mark_is_not_the_beginning_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """4711-9 has nothing to do with 4711-99."""
    with role() as (_, pids):
        monkeypatch.setitem(process._marks, os.getpid(), process.owner_id()[:-1])
        process.sweep(pids)
        assert all(map(process.is_alive, pids))


@pytest.fixture
def own_forkserver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A forkserver that a test may stop and kill, in place of the session's. Gives a function for its pid."""
    server: Any = standard.ForkServer()
    monkeypatch.setattr(standard, "_forkserver", server)
    for name in ("ensure_running", "connect_to_new_process", "set_forkserver_preload"):
        monkeypatch.setattr(standard, name, getattr(server, name))
    forkserver.start_forkserver(LIGHT)
    yield lambda: server._forkserver_pid
    forkserver.start_forkserver(LIGHT)  # it may have been killed
    os.kill(server._forkserver_pid, signal.SIGCONT)
    with contextlib.suppress(FileNotFoundError):  # its socket
        server._stop()


def nothing() -> None:
    """What a process does that is only started."""


def started() -> Any:
    child = multiprocessing.get_context("forkserver").Process(target=nothing, name=SELF)
    forkserver.launch(child, preload=LIGHT)
    return child


def test_f27_a_stopped_forkserver_is_woken_by_the_next_start(own_forkserver: Any) -> None:
    before = own_forkserver()
    os.kill(before, signal.SIGSTOP)
    child = started()
    child.join(60)
    assert (child.exitcode, own_forkserver()) == (0, before)
    child.close()


def test_f27_a_forkserver_that_stays_stopped_is_replaced(own_forkserver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forkserver, "STOPPED_S", 0.5)
    wake = forkserver._signal
    monkeypatch.setattr(forkserver, "_signal", lambda number: None if number == signal.SIGCONT else wake(number))
    before = own_forkserver()
    os.kill(before, signal.SIGSTOP)
    child = started()
    child.join(60)
    assert child.exitcode == 0
    assert own_forkserver() != before
    assert gone([before])
    child.close()


def test_f27_a_forkserver_that_never_answers_is_told_with_a_name(
    own_forkserver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forkserver, "START_S", 1.0)
    monkeypatch.setattr(forkserver, "is_stopped", lambda pid: False)
    os.kill(own_forkserver(), signal.SIGSTOP)
    with pytest.raises(RoleLost, match=rf"{SELF} could not be started in 5 attempts or 1 s: .*Error"):
        started()


def test_f27_a_forkserver_whose_socket_was_removed_is_replaced(own_forkserver: Any) -> None:
    server: Any = standard
    before = own_forkserver()
    os.unlink(server._forkserver._forkserver_address)
    child = started()
    child.join(60)
    assert child.exitcode == 0
    assert own_forkserver() != before
    child.close()


def test_f27_the_end_of_a_process_is_seen_though_the_forkserver_was_stopped(own_forkserver: Any) -> None:
    with role() as (child, pids):
        os.kill(own_forkserver(), signal.SIGSTOP)
        os.kill(pids[0], signal.SIGKILL)
        forkserver.wait_for_end(child)
        assert child.exitcode == -signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_f27_processes_start_without_the_resource_tracker(number: int) -> None:
    tracker: Any = resource_tracker
    pid = tracker._resource_tracker._pid
    os.kill(pid, number)
    if number == signal.SIGKILL:
        assert gone([pid])
    child = started()
    child.join(60)
    assert child.exitcode == 0
    child.close()
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_f27_a_warden_is_replaced_and_knows_what_the_one_before_knew(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_marks", {os.getpid(): "nobody-has-this-mark"})
    monkeypatch.setattr("freewheel.machine.guard.own_folder", lambda: "")  # the session still needs it
    guard = Guard()
    helper = subprocess.Popen(["sleep", "600"], start_new_session=True)
    guard.start()
    guard.add(helper.pid)
    assert guard._warden is not None
    before = guard._warden
    os.kill(before.pid, number)
    end = time.monotonic() + 10
    while not (notes := guard.look(time.monotonic())) and time.monotonic() < end:
        time.sleep(0.01)
    assert notes == [f"The warden (pid {before.pid}) was killed or stopped, and is replaced."]
    assert guard._warden.pid != before.pid
    assert guard.look(time.monotonic()) == []
    assert guard._warden.stdin is not None
    try:
        assert helper.poll() is None
        end_of(guard)
        assert helper.wait(10) == -signal.SIGKILL
    finally:
        helper.kill()
        helper.wait()


def end_of(guard: Guard) -> None:
    """As the kernel ends the input of the warden when the supervisor is killed."""
    assert guard._warden is not None
    assert guard._warden.stdin is not None
    guard._warden.stdin.close()
    guard._warden.wait(10)
    guard._warden = None


FOLDER = """
import os, signal, sys
from freewheel.machine import temp_folder
temp_folder.use_own_folder()
print(temp_folder.own_folder(), flush=True)
if sys.argv[1] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
sys.stdin.read()
"""


def folder_of(how: str, parent: Path) -> tuple[subprocess.Popen[str], Path]:
    child = subprocess.Popen(
        [sys.executable, "-c", FOLDER, how],
        env={**os.environ, "TMPDIR": str(parent)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    return child, Path(child.stdout.readline().strip())


def test_the_folder_of_a_killed_process_is_removed_by_a_later_one_and_that_of_a_living_one_stays(
    tmp_path: Path,
) -> None:
    killed, left = folder_of("killed", tmp_path)
    killed.communicate(timeout=60)
    assert left.is_dir()
    mine = tmp_path / f"{temp_folder.PREFIX}file"
    mine.write_text("no folder")
    living, kept = folder_of("lives", tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([mine, kept])
    another, also = folder_of("lives", tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([mine, kept, also])
    for child in (living, another):
        child.communicate(timeout=60)
    assert list(tmp_path.iterdir()) == [mine], "a process that ends removes its own"


GONE = """
import os, shutil
from freewheel.machine import temp_folder
temp_folder.use_own_folder()
before, fds = temp_folder.own_folder(), os.listdir("/proc/self/fd")
shutil.rmtree(before)
temp_folder.use_own_folder()
assert temp_folder.own_folder() != before
assert os.path.isdir(temp_folder.own_folder())
assert os.listdir("/proc/self/fd") == fds
"""


def test_a_folder_that_somebody_removed_is_made_anew(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", GONE], env={**os.environ, "TMPDIR": str(tmp_path)}, check=True, timeout=60)
    assert list(tmp_path.iterdir()) == []


def test_threads_of_a_start_end_with_it() -> None:
    child = started()
    child.join(60)
    child.close()
    assert [thread for thread in threading.enumerate() if thread.name == "fw-start"] == []
