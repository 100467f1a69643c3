"""The counts of a run: of each policy apart, of all together, in shared memory that every process sees."""

from __future__ import annotations

import multiprocessing as mp
import threading
import time

import pytest

from freewheel.memory.counts import ALLOWED, SEEN, STEPS, UPDATES, WAIT_S, RunCounts


def test_policies_count_apart_and_their_steps_together() -> None:
    run = RunCounts(2)
    red, blue = run.of(0), run.of(1)
    red.add_steps(3)
    blue.add_steps(4)
    red.add_updates(1)
    blue.add_updates(10)
    blue.parts[SEEN].add(2)
    assert (red.steps, blue.steps, run.steps) == (3, 4, 7)
    assert red.run_steps == blue.run_steps == 7
    assert (red.updates, blue.updates, run.updates) == (1, 10, 11)
    assert [red.parts[i].value for i in (STEPS, UPDATES, SEEN, ALLOWED)] == [3, 1, 0, 0]
    assert [blue.parts[i].value for i in (STEPS, UPDATES, SEEN, ALLOWED)] == [4, 10, 2, 0]
    assert not run.is_stopping


@pytest.mark.parametrize(
    ("levels", "seen"), [((1, 2), [(True, False), (True, True)]), ((2, 1), [(True, True), (True, True)])]
)
def test_the_end_comes_in_two_steps_and_never_goes_back(levels: tuple[int, ...], seen: list[tuple[bool, bool]]) -> None:
    run = RunCounts(1)
    assert (run.is_stopping, run.is_over) == (False, False)
    found = []
    for level in levels:
        for _ in range(2):  # told twice is told once
            run.stop(level)
        found.append((run.is_stopping, run.is_over))
    assert found == seen
    assert run.steps == run.of(0).steps == 0


def test_a_wait_ends_with_its_count_or_after_a_moment() -> None:
    counts = RunCounts(2).of(1)
    begun = time.monotonic()
    counts.wait(UPDATES, 1)
    assert 0.5 * WAIT_S < time.monotonic() - begun < 30
    timer = threading.Timer(0.01, lambda: counts.add_steps(5))
    timer.start()
    while counts.steps < 5:
        counts.wait(STEPS, 5)
    timer.join()
    counts.wait(STEPS, 5)  # at once


def count_there(run: RunCounts) -> None:
    run.of(1).add_steps(5)
    run.of(0).add_updates(2)
    run.stop()


def test_another_process_counts_in_the_same_memory() -> None:
    run = RunCounts(2)
    process = mp.get_context("forkserver").Process(target=count_there, args=(run,))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    process.close()
    assert (run.of(1).steps, run.steps, run.of(0).steps) == (5, 5, 0)
    assert run.of(0).updates == run.updates == 2
    assert run.is_stopping
