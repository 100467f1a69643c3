"""One replay in the hands of several threads: nothing crashes, no batch holds another's rows, priorities reach their rows."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from freewheel.errors import ReplayError
from freewheel.memory.lanes import Lanes
from freewheel.memory.replay import Replay
from freewheel.spec import RowSpec

LANES, ROWS, THREADS = 4, 500, 4


def filled() -> Lanes:
    """An observation says which row it is, twenty times over."""
    lanes = Lanes(RowSpec.of(spaces.Box(0, 1e6, (20,), np.float64), spaces.Discrete(2)), LANES, ROWS)
    writer, flags = lanes.writer(), np.zeros(LANES, bool)
    for row in range(ROWS):
        obs = np.repeat((np.arange(LANES) * ROWS + row)[:, None], 20, 1).astype(np.float64)
        rows = {"obs": obs, "action": np.zeros(LANES, np.int64)}
        writer.append(np.arange(LANES), rows, np.zeros(LANES, np.float32), flags, flags)
    return lanes


def in_threads(work: Any) -> None:
    """Runs `work(i)` in all threads at once, and raises what one of them raised."""
    errors: list[BaseException] = []
    start = threading.Barrier(THREADS)

    def guarded(i: int) -> None:
        start.wait(20)
        try:
            work(i)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    for error in errors:
        raise error


@pytest.mark.parametrize("prefetch", [0, 3])
@pytest.mark.parametrize("prioritized", [True, False])
def test_four_threads_draw_from_one_replay(prioritized: bool, prefetch: int) -> None:
    replay = Replay(filled(), 64, prioritized=prioritized, seed=1, prefetch=prefetch)
    until = time.monotonic() + 0.5
    drawn = [0] * THREADS

    def draw(i: int) -> None:
        rng = np.random.default_rng(i)
        while time.monotonic() < until:
            batch = replay.sample(beta=0.5)
            want = batch.array("lane") * ROWS + batch.array("row")
            for _ in range(2):  # also after others have drawn: the buffer is this thread's
                assert (batch.array("obs") == want[:, None]).all()
                replay.update_priorities(batch, rng.exponential(size=64).astype(np.float32))
            assert batch.array("weight").max() == 1.0
            drawn[i] += 1

    in_threads(draw)
    assert all(drawn)
    stats = replay.stats()
    assert sum(drawn) <= stats["batches"] <= sum(drawn) + prefetch
    assert not prioritized or stats["stale_priorities"] == 0
    replay.close()


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_close_ends_the_draws_of_all_threads(prefetch: int) -> None:
    replay = Replay(filled(), 64, prioritized=True, prefetch=prefetch)
    ended = []

    def draw_for_ever() -> None:
        while True:
            replay.sample()

    def draw(i: int) -> None:
        if i == 0:
            time.sleep(0.2)
            replay.close()
            return
        with pytest.raises(ReplayError, match="closed"):
            draw_for_ever()
        ended.append(i)

    in_threads(draw)
    assert sorted(ended) == [1, 2, 3]
