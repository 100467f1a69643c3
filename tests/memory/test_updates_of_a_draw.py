"""A draw for several updates: each has its own sample of the whole mass and its own weights, in whatever parts it is trained on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from scipy import stats

from freewheel.algos.make import make_algo
from freewheel.config import assemble
from freewheel.contracts import Spaces
from freewheel.memory.lanes import Lanes
from freewheel.memory.nested import parts_of
from freewheel.memory.replay import ReplayMemory
from freewheel.spec import RowSpec

OBS = spaces.Discrete(10_000)
LANES, ROWS, BATCH, UPDATES, ALPHA, BETA = 8, 40, 24, 6, 0.7, 0.5


def memory_of(*, accumulate: int = 1, prefetch: int = 0, **more: Any) -> ReplayMemory:
    """Of a dqn whose lanes are full; an observation says which row it is."""
    lanes = Lanes(RowSpec.of(OBS, spaces.Discrete(2)), LANES, ROWS)
    n = LANES * ROWS
    rows = {"obs": np.arange(n) % LANES * ROWS + np.arange(n) // LANES, "action": np.zeros(n, np.int64)}
    flags = np.zeros(n, bool)
    lanes.writer().append(np.arange(n) % LANES, rows, np.zeros(n, np.float32), flags, flags)
    given = {"replay.rows": n, "replay.warmup_rows": BATCH * UPDATES, "replay.prioritized": True, "replay.alpha": ALPHA}
    given |= {"replay.beta": BETA, "replay.beta_end": BETA}
    given |= {"learner.batch_size": BATCH, "learner.updates_per_call": UPDATES, "learner.accumulate": accumulate}
    given |= {"world.lanes": LANES, "learner.compile": "off", "runtime": "sequential"}
    config = assemble("x", given | more, "none")
    return make_algo(config, Spaces(OBS, spaces.Discrete(2), LANES)).memory(lanes, lambda stream: 3, prefetch)


def priority_of(obs: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The lanes differ by a hundred times, and so do the rows of one."""
    made: np.ndarray[Any, Any] = (1 + obs // ROWS) ** 2 * (1 + obs % 7) / 10
    return made.astype(np.float32)


def settle(memory: ReplayMemory) -> None:
    """Until every row has its own priority."""
    seen: set[int] = set()
    while len(seen) < LANES * (ROWS - 1):
        batch = memory.replay.sample(BETA)
        obs = batch.array("obs")
        seen |= set(obs.tolist())
        memory.replay.update_priorities(batch, priority_of(obs))


def in_order_of_draws(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Sorted as the sum tree lays them out: within a node children stand 0 4 8 12, 1 5 9 13, ..."""
    leaf, key = rows // ROWS * (ROWS + 1) + rows % ROWS, np.zeros(len(rows), np.int64)
    for level in (8, 4, 0):
        child = leaf >> level & 15
        key = key << 4 | (child % 4 * 4 + child // 4)
    return rows[np.argsort(key)]


def updates_of(memory: ReplayMemory, lessons: int) -> list[dict[str, np.ndarray[Any, Any]]]:
    """What each update is given: observations and weights."""
    found = []
    for _ in range(lessons):
        for drawn in memory.lesson(0.0, 0).batches():
            found += [{name: one[name].numpy().copy() for name in ("obs", "weight")} for one in drawn.given]
    return found


EVERY = in_order_of_draws(
    np.arange(LANES * ROWS).reshape(LANES, ROWS)[:, :-1].ravel()
)  # a lane's newest row is no start
MASS = priority_of(EVERY).astype(np.float64) ** ALPHA / (priority_of(EVERY).astype(np.float64) ** ALPHA).sum()
SHARE = dict(zip(EVERY.tolist(), MASS.tolist(), strict=True))
PLACE = dict(zip(EVERY.tolist(), (np.cumsum(MASS) - MASS / 2).tolist(), strict=True))  # of a row in the mass
LESSONS = 120


def follows_the_mass(rows: list[int]) -> bool:
    found = np.bincount(rows, minlength=LANES * ROWS)[EVERY]
    return bool(stats.chisquare(found, MASS * len(rows)).pvalue > 1e-4)


def test_every_update_sees_the_whole_mass_and_weighs_by_itself() -> None:
    memory = memory_of()
    settle(memory)
    drawn: list[list[int]] = [[] for _ in range(UPDATES)]
    for i, update in enumerate(updates_of(memory, LESSONS)):
        rows = update["obs"].tolist()
        # One row from each stratum.
        places = np.sort([PLACE[row] for row in rows])
        off = np.abs(places - (np.arange(BATCH) + 0.5) / BATCH).max()
        assert off < 0.5 / BATCH + MASS.max(), f"update {i} of lanes {sorted({row // ROWS for row in rows})}"
        # The weights of the paper over these rows alone.
        want = np.array([SHARE[row] for row in rows]) ** -BETA
        np.testing.assert_allclose(update["weight"], want / want.max(), rtol=2e-5)
        assert update["weight"].max() == 1.0
        drawn[i % UPDATES] += rows
    assert all(follows_the_mass(rows) for rows in drawn)
    memory.close()


@pytest.mark.parametrize("parts", [2, 3, 4, 5])
def test_every_part_of_an_update_sees_the_whole_mass(parts: int) -> None:
    """Those of an accumulated batch, of one that memory splits, and of gradient workers: all are cut as `parts_of` says."""
    memory = memory_of(accumulate=parts if BATCH % parts == 0 else 1)
    settle(memory)
    drawn: list[list[int]] = [[] for _ in range(parts)]
    for update in updates_of(memory, LESSONS):
        for k, (first, count) in enumerate(parts_of(BATCH, parts)):
            rows = update["obs"][first : first + count].tolist()
            places = np.sort([PLACE[row] for row in rows])
            gap = np.diff(places, append=places[0] + 1).max()
            assert gap < 2 / count + 2 / BATCH, f"part {k} leaves out {gap:.0%} of the mass"
            drawn[k] += rows
    assert all(follows_the_mass(rows) for rows in drawn)
    memory.close()
