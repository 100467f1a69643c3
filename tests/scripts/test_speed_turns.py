"""Two workers take turns: neither runs in the other's slice, each knows how long it stood still, and none outlives the pair."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from speed_turns import GateError, Worker, by_turns, family

# Counts how long it and a child of its own run, by looking at the clock all the time; a gap is time in which it stood still.
SPIN = """
import json, mmap, os, struct, sys, time
folder = sys.argv[-1]
child = os.fork()
memory = mmap.mmap(os.open(folder + "/paused", os.O_RDONLY), 8, access=mmap.ACCESS_READ)
open(folder + "/warm", "w").close()
clock = lambda: time.perf_counter() - struct.unpack("d", memory)[0]
begun, last, ran = clock(), time.perf_counter(), []
while clock() - begun < 0.6:
    time.sleep(0.002)
    now = time.perf_counter()
    if now - last < 0.05:
        ran.append((last, now))
    last = now
seconds = clock() - begun
if child:
    os.waitpid(child, 0)
name = folder + ("/result.json" if child else "/child.json")
with open(name + ".new", "w") as file:
    json.dump({"ran": ran, "seconds": seconds}, file)
os.rename(name + ".new", name)
"""


def start(folder: Path, name: str, script: str = SPIN) -> Worker:
    (folder / name).mkdir()
    return Worker(name, [sys.executable, "-c", script], dict(os.environ), folder / name)


def overlap(one: list[list[float]], two: list[list[float]]) -> float:
    return sum(max(min(a[1], b[1]) - max(a[0], b[0]), 0.0) for a in one for b in two)


def test_two_workers_never_run_at_once(tmp_path: Path) -> None:
    with start(tmp_path, "one") as one, start(tmp_path, "two") as two:
        by_turns([one, two], timeout_s=60, slice_s=0.1)
        figures = [worker.result() for worker in (one, two)]
    for found in figures:
        assert 0.6 <= found["seconds"] < 0.9  # without those in which it stood still
        assert found["ran"][-1][1] - found["ran"][0][0] > 0.9
    # Before both are warm they may meet, and when both have a result.
    assert overlap(figures[0]["ran"], figures[1]["ran"]) < 0.15


def test_a_worker_that_fails_is_told_with_its_last_lines(tmp_path: Path) -> None:
    with (
        start(tmp_path, "one") as one,
        start(tmp_path, "two", "raise SystemExit('no such setting')") as two,
        pytest.raises(GateError, match="two ended with 1:\nno such setting"),
    ):
        by_turns([one, two], timeout_s=60)


def test_workers_that_never_finish_are_ended_with_all_they_started(tmp_path: Path) -> None:
    idle = "import os, sys, time; os.fork(); open(sys.argv[-1] + '/warm', 'w').close(); time.sleep(60)"
    with start(tmp_path, "one", idle) as one, start(tmp_path, "two", idle) as two:
        with pytest.raises(GateError, match="one and two were not measured in time"):
            by_turns([one, two], timeout_s=1.0, slice_s=0.1)
        assert len(family(one._process.pid)) == 2
