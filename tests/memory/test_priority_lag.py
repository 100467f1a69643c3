"""How old a draw is when it is trained on: bounded with priorities, and told; and the largest priority, which outlives its learner."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from freewheel.algos.make import make_algo
from freewheel.config import assemble
from freewheel.contracts import Spaces
from freewheel.memory.lanes import Lanes
from freewheel.memory.replay import Replay, ReplayMemory
from freewheel.spec import RowSpec

BATCH, ROWS = 8, 2000
OBS = spaces.Box(-1, 1, (2,), np.float32)


def filled(rows: int = ROWS) -> Lanes:
    lanes = Lanes(RowSpec.of(OBS, spaces.Discrete(2)), 1, ROWS)
    append(lanes, rows)
    return lanes


def append(lanes: Lanes, rows: int) -> None:
    fields = {"obs": np.ones((rows, 2), np.float32), "action": np.zeros(rows, np.int64)}
    flags = np.zeros(rows, bool)
    lanes.writer(go_on=[0]).append(np.zeros(rows, np.int64), fields, np.ones(rows, np.float32), flags, flags)


def memory_of(prefetch: int = 0, **settings: Any) -> ReplayMemory:
    given = {"replay.rows": ROWS, "replay.warmup_rows": ROWS // 2, "learner.batch_size": BATCH, "world.lanes": 1}
    given |= {"runtime": "local", "replay.prioritized": True, "learner.compile": "off", **settings}
    config = assemble("x", given, "none")
    made: ReplayMemory = make_algo(config, Spaces(OBS, spaces.Discrete(2), 1)).memory(filled(), lambda _: 0, prefetch)
    return made


def learn(memory: ReplayMemory, lessons: int, pause_s: float = 0.0) -> list[float]:
    """As a learner does. The lag of each draw."""
    found = []
    for _ in range(lessons):
        lesson = memory.lesson(0.0, 0)
        for drawn in lesson.batches():
            time.sleep(pause_s)
            found.append(memory.metrics()["priority_lag"])
            errors = torch.ones(memory.replay.num_rows)
            lesson.learned(drawn, [SimpleNamespace(priorities=errors)])
    return found


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("bound", [0, 3, 7, 32, 100])
def test_a_draw_is_never_older_than_the_bound(bound: int, compiled: bool) -> None:
    """With all that draws ahead: the thread, and from the third lesson on the target process."""
    compile_it = {"learner.compile": "on" if compiled else "off"}
    memory = memory_of(4, **{"learner.updates_per_call": 64, "replay.priority_lag_updates": bound, **compile_it})
    lags = learn(memory, 2, 0.001)
    memory.draw_ahead(2, lambda drawn: None)
    lags += learn(memory, 2, 0.001)
    updates = memory.replay.updates
    assert max(lags) <= bound
    assert min(lags) >= updates - 1  # the updates of the draw itself
    assert 64 % updates == 0
    # And the bound is made use of: some draws are ready before they are needed.
    assert bound < 7 or max(lags) > updates - 1 or 2 * updates > bound + 1
    memory.close()


def test_without_priorities_a_draw_may_be_as_old_as_it_likes() -> None:
    memory = memory_of(4, **{"learner.updates_per_call": 64, "replay.prioritized": False})
    assert (memory.replay.updates, memory.replay.prefetch) == (64, 4)
    memory.draw_ahead(2, lambda drawn: None)
    next(memory.lesson(0.0, 0).batches())
    assert "priority_lag" not in memory.metrics()
    memory.close()


@pytest.mark.parametrize(("depth", "updates", "lag"), [(0, 1, 0), (0, 4, 3), (5, 1, 5), (3, 4, 15)])
def test_the_lag_is_told_in_updates(depth: int, updates: int, lag: int) -> None:
    """Without a thread it is known: the draws ahead, and the updates of the draw itself."""
    replay = Replay(filled(), BATCH, updates=updates, prioritized=True)
    memory = ReplayMemory(replay, lambda *_: {}, updates_per_call=40, unrolled=1, seed=0, beta=(0.4, 1.0))
    memory.draw_ahead(depth, lambda drawn: None)
    assert learn(memory, 3)[depth:] == [float(lag)] * (3 * 40 // updates - depth)
    memory.close()


@pytest.mark.parametrize("prefetch", [0, 2])
def test_the_largest_priority_outlives_its_learner(prefetch: int) -> None:
    """A learner that takes another's place gave new rows the priority 1 again: they were hardly drawn."""
    lanes = filled(200)
    first = Replay(lanes, BATCH, prioritized=True, alpha=1.0, prefetch=prefetch)
    batch = first.sample()
    first.update_priorities(batch, np.full(BATCH, 1000.0, np.float32))
    first.update_priorities(batch, np.full(BATCH, 1e-3, np.float32))
    first.close()
    second = Replay(lanes, BATCH, prioritized=True, alpha=1.0, seed=1, prefetch=prefetch)
    append(lanes, 20)
    batch = second.sample()
    assert set(batch.array("chance")[batch.array("row") >= 199].tolist()) == {1000.0}
    assert second.state()["max_priority"] == 1000.0
    second.close()
