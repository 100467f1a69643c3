"""Shared memory between real processes: handing over, dying, forking, and many checked reads (F10, F15, F17, F18)."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import subprocess
import sys
import textwrap
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from freewheel.errors import ReplayError
from freewheel.memory.counter import Counters
from freewheel.memory.lanes import Lanes
from freewheel.memory.replay import Replay
from freewheel.spec import RowSpec

WORDS = RowSpec.of(spaces.Box(0, 2**62, (8,), np.int64), spaces.Box(0, 2**62, (), np.int64))
# A hundred million with `make fault`; the core's own tests make a thousand million.
READS = 10_000_000 * int(os.environ.get("FREEWHEEL_FAULT", "2"))


def write_numbered(lanes: Lanes, own: list[int], stop: Counters, ready: Connection, length: int) -> None:
    """Fills lanes with rows that are computed from lane and row number, as fast as it can."""
    writer = lanes.writer(own)
    n = 64
    row = 0
    flags = np.zeros(n, bool)
    while not stop.value(0):
        numbers = np.arange(row, row + n)
        last = numbers % length == length - 1
        for lane in own:
            value = (numbers * 1000 + lane)[:, None]
            writer.append(
                np.full(n, lane),
                {"obs": np.ascontiguousarray(np.broadcast_to(value, (n, 8))), "action": numbers * 7 + lane},
                (numbers % length).astype(np.float32),
                last & (numbers // length % 2 == 0),
                last & (numbers // length % 2 == 1) | flags,
            )
        row += n
        if row == n * 40:
            ready.send(os.getpid())


def start(method: str, target: object, *args: object) -> mp.process.BaseProcess:
    process = mp.get_context(method).Process(target=target, args=args, daemon=True)
    process.start()
    return process


def check_numbered(replay: Replay, length: int) -> tuple[int, int]:
    """Draws a batch and gives (torn rows, samples out of their episode)."""
    batch = replay.sample()
    obs, after, lane, row = (batch.array(name) for name in ("obs", "next_obs", "lane", "row"))
    steps, reward = batch.array("steps"), batch.array("reward")
    torn = (obs != (row * 1000 + lane)[:, None]).any(1)
    torn |= (after != ((row + steps) * 1000 + lane)[:, None]).any(1)
    torn |= batch.array("action") != row * 7 + lane
    # Each reward is its row's place in the episode, so one of another episode (or none) changes the sum.
    place = (row % length).astype(np.float32)
    ends = row % length + 3 >= length - 1
    want_steps = np.where(ends, length - 1 - row % length, 3)
    want = np.where(want_steps >= 1, place + 1, 0) + np.where(want_steps >= 2, place + 2, 0)
    want = want + np.where(want_steps >= 3, place + 3, 0)
    terminated = ends & (row // length % 2 == 0)
    outside = (reward != want) | (steps != want_steps) | ((batch.array("discount") == 0) != terminated)
    return int(torn.sum()), int((outside & ~torn).sum())


def test_f10_checked_reads_between_processes() -> None:
    """A small ring under a busy writer: with the check nothing torn passes, without it a lot does."""
    length, batch = 16, 4096
    lanes = Lanes(WORDS, 2, 4096)
    stop = Counters(1)
    ours, theirs = mp.Pipe()
    writer = start("forkserver", write_numbered, lanes, [0, 1], stop, theirs, length)
    assert ours.poll(60), "the writer did not start"
    ours.recv()
    replay = Replay(lanes, batch, n_step=3, gamma=1.0)
    torn = outside = 0
    try:
        for _ in range(READS // batch + 1):
            t, o = check_numbered(replay, length)
            torn, outside = torn + t, outside + o
        redraws = replay.stats()["redraws"]

        trusting = Replay(lanes, batch, n_step=3, gamma=1.0)
        trusting._core.distrust_check(True)
        seen = 0
        for _ in range(20_000):
            t, o = check_numbered(trusting, length)
            seen += t + o
            if seen > 10:
                break
    finally:
        stop.add(0)
        writer.join(30)
        ours.close()
        theirs.close()
    assert (torn, outside) == (0, 0)
    assert redraws > 0, "the writer never came near: the test proves nothing"
    assert seen > 10, "the reader without the check saw nothing torn: the test cannot see"
    assert writer.exitcode == 0


def report(lanes: Lanes, connection: Connection) -> None:
    batch = Replay(lanes, 4).sample()
    connection.send((batch.obs.sum().item(), lanes.rows_written()))


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_lanes_go_to_children_as_arguments(method: str) -> None:
    lanes = Lanes(WORDS, 1, 50)
    n = 20
    zeros = np.zeros(n, bool)
    lanes.writer().append(
        np.zeros(n, np.int64),
        {"obs": np.full((n, 8), 5), "action": np.zeros(n, np.int64)},
        np.zeros(n, np.float32),
        zeros,
        zeros,
    )
    ours, theirs = mp.Pipe()
    child = start(method, report, lanes, theirs)
    assert ours.poll(60)
    assert ours.recv() == (4 * 8 * 5, n)
    child.join(30)
    ours.close()
    theirs.close()


def test_pickling_elsewhere_is_refused() -> None:
    import pickle

    with pytest.raises(ReplayError, match="arguments of a multiprocessing Process"):
        pickle.dumps(Lanes(WORDS, 1, 50))


FORKED = """
import os, sys, threading
import numpy as np
from gymnasium import spaces
from freewheel.memory.lanes import Lanes
from freewheel.memory.replay import Replay
from freewheel.weights.board import Board
from freewheel.report.ledger import Ledger
from freewheel.memory.counter import Counters
from freewheel.spec import RowSpec
from freewheel.errors import ReplayError
import torch
lanes = Lanes(RowSpec.of(spaces.Discrete(5), spaces.Discrete(2)), 1, 50)
writer = lanes.writer()
n = 20
rows = (np.zeros(n, np.int64), {"obs": np.arange(n), "action": np.zeros(n, np.int64)}, np.zeros(n, np.float32), np.zeros(n, bool), np.zeros(n, bool))
writer.append(*rows)
replay = Replay(lanes, 4, prefetch=2)
batch = replay.sample()
board, counters, page = Board(400), Counters(1), Ledger(1, ["a"]).page(0)
stop = threading.Event()
threads = [threading.Thread(target=stop.wait, args=(30,)) for _ in range(4)]
for t in threads: t.start()
pid = os.fork()
if pid == 0:
    uses = [lambda: writer.append(*rows), lambda: replay.sample(), lambda: lanes.rows_written(), lambda: board.publish(torch.zeros(100)),
            lambda: counters.add(0), lambda: page.enter(0), lambda: replay.close(), lambda: lanes.writer()]
    refused = 0
    for use in uses:
        try:
            use()
        except ReplayError as error:
            refused += "before a fork" in str(error)
    del replay, batch  # must not wait for a thread that is not here
    os._exit(0 if refused == len(uses) else 1)
_, status = os.waitpid(pid, 0)
stop.set()
for t in threads: t.join()
writer.append(*rows)
assert replay.sample() is not None
replay.close()
sys.exit(os.waitstatus_to_exitcode(status))
"""


def run(code: str, *argv: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code), *argv],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def test_f18_objects_used_in_a_forked_child_raise() -> None:
    done = run(FORKED)
    assert done.returncode == 0, done.stderr


def test_f18_import_starts_no_thread_and_opens_no_descriptor() -> None:
    done = run(
        """
        import os, torch, numpy, gymnasium  # theirs are not ours to count
        before = len(os.listdir("/proc/self/task")), set(os.listdir("/proc/self/fd"))
        import freewheel, freewheel.memory.replay, freewheel.weights.board, freewheel.report.ledger
        after = len(os.listdir("/proc/self/task")), set(os.listdir("/proc/self/fd"))
        assert before == after, (before, after)
        assert not torch.cuda.is_initialized()
        """
    )
    assert done.returncode == 0, done.stderr


KILLED = r"""
import multiprocessing as mp, os, sys, time
import numpy as np
from gymnasium import spaces
from freewheel.machine.temp_folder import use_own_folder
from freewheel.memory.lanes import Lanes
from freewheel.spec import RowSpec
def hold(lanes):
    os.write(1, f"child {os.getpid()}\n".encode())  # in one piece: others write to the same pipe
    time.sleep(60)
if __name__ == "__main__":
    lanes = Lanes(RowSpec.of(spaces.Box(0, 1, (1000,), np.float32), spaces.Discrete(2)), 4, 16000)
    use_own_folder()  # what a killed process leaves of it, the next start removes
    for _ in range(2):
        mp.get_context("forkserver").Process(target=hold, args=(lanes,)).start()
    os.write(1, f"parent {lanes.nbytes}\n".encode())
    time.sleep(60)
"""


def shared_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("Shmem:"):
            return int(line.split()[1]) * 1024
    raise AssertionError


def test_f05_nothing_remains_after_sigkill_of_the_whole_group(tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    names = set(os.listdir("/dev/shm"))
    process = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    lines = [process.stdout.readline().split() for _ in range(3)]
    held = next(int(value) for who, value in lines if who == "parent")
    assert held > 250e6
    before = shared_bytes()
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(10)
    process.stdout.close()
    pids = [int(value) for who, value in lines if who == "child"]
    deadline = time.monotonic() + 10
    while (any(Path(f"/proc/{pid}").exists() for pid in pids) or before - shared_bytes() < held * 0.9) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert before - shared_bytes() > held * 0.9, "the memory is still taken"
    assert {name for name in set(os.listdir("/dev/shm")) - names if "freewheel" in name} == set()


def test_f15_works_with_a_small_dev_shm(tmp_path: Path) -> None:
    """A container's usual 64 MB of /dev/shm: 256 MB of lanes are made, filled and read all the same."""
    code = """
    import numpy as np
    from gymnasium import spaces
    from freewheel.memory.lanes import Lanes
    from freewheel.spec import RowSpec
    import os
    size = os.statvfs("/dev/shm")
    assert size.f_blocks * size.f_frsize <= 64 << 20, size
    lanes = Lanes(RowSpec.of(spaces.Box(0, 1, (1000,), np.float32), spaces.Discrete(2)), 4, 16000)
    assert lanes.nbytes > 250e6
    writer = lanes.writer()
    n = 1000
    for _ in range(16):
        for lane in range(4):
            writer.append(np.full(n, lane), {"obs": np.ones((n, 1000), np.float32), "action": np.zeros(n, np.int64)},
                          np.zeros(n, np.float32), np.zeros(n, bool), np.zeros(n, bool))
    """
    done = subprocess.run(
        [
            "unshare",
            "-rm",
            "sh",
            "-c",
            'mount -t tmpfs -o size=64m none /dev/shm && exec "$0" -c "$1"',
            sys.executable,
            textwrap.dedent(code),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if "unshare failed" in done.stderr or "must be superuser" in done.stderr:
        pytest.skip(f"this machine allows no mount namespace: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
