"""Outcomes that are in no row yet: seen while the lane has no newer row, and never those of another row."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from freewheel.contracts import ColumnSpec
from freewheel.memory.lanes import Bootstrap, Bootstraps, Lanes, Writer
from freewheel.memory.rollout import Rollout
from freewheel.spec import RowSpec

EXTRA: dict[str, ColumnSpec] = {"log_prob": ("float32", ()), "value": ("float32", ())}
SPEC = RowSpec.of(spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(5), EXTRA)


def write(writer: Writer, lanes: list[int], reward: float = 0.0) -> None:
    n = len(lanes)
    zeros, none = np.zeros(n, np.float32), np.zeros(n, np.bool_)
    fields = {"obs": zeros[:, None].copy(), "action": np.zeros(n, np.int64), "log_prob": zeros, "value": zeros}
    writer.append(np.array(lanes), fields, np.full(n, reward, np.float32), none, none)


def bootstrap(lanes: list[int], reward: float, value: float) -> Bootstrap:
    n = len(lanes)
    return Bootstrap(np.array(lanes), np.full(n, reward, np.float32), np.full(n, value, np.float32))


def heads(lanes: Lanes) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array([lanes.core.head(lane) for lane in range(lanes.num_lanes)], np.int64)


def test_a_bootstrap_counts_until_the_lane_has_another_row() -> None:
    lanes, bootstraps = Lanes(SPEC, 3, 8), Bootstraps(3)
    writer = lanes.writer()
    assert bootstraps.of(heads(lanes)).lanes.tolist() == []
    write(writer, [0, 1, 2])
    bootstraps.put(bootstrap([1, 2], 4.0, 0.5), lanes)
    found = bootstraps.of(heads(lanes))
    assert (found.lanes.tolist(), found.reward.tolist(), found.value.tolist()) == ([1, 2], [4, 4], [0.5, 0.5])
    write(writer, [2])
    assert bootstraps.of(heads(lanes)).lanes.tolist() == [1]


def test_a_rollout_is_complete_with_the_bootstraps_and_hands_nothing_out_twice() -> None:
    lanes, bootstraps = Lanes(SPEC, 2, 16), Bootstraps(2)
    writer, rollout = lanes.writer(), Rollout(lanes, 4)
    write(writer, [0, 1])
    write(writer, [0, 1], reward=1.0)
    assert rollout.take(0, bootstraps.of) is None
    assert rollout.available == 2
    bootstraps.put(bootstrap([0, 1], 2.0, 0.5), lanes)
    taken = rollout.take(0, bootstraps.of)
    assert taken is not None
    assert taken.reward[taken.kept].tolist() == [1, 2, 1, 2]
    assert rollout.take(0, bootstraps.of) is None
    assert rollout.available == 0
