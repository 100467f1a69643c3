"""Lanes' own numbers, by the core: what they are, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from freewheel import _core
from freewheel.actors.value_policy import LaneUniforms
from freewheel.errors import ReplayError

MASK = 2**64 - 1
STRIDE = 0x9E3779B97F4A7C15


def mix(x: int) -> int:
    x &= MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def naive(seed: int, lane: int, count: int, place: int) -> float:
    key = mix(mix(seed) + (lane + 1) * STRIDE)
    return float((mix(mix(key + count * STRIDE) + (place + 1) * STRIDE) >> 11) / 2**53)


def test_numbers_are_a_hash_of_seed_lane_and_count() -> None:
    uniforms = LaneUniforms(2**62 + 5, 4, 3, first_lane=7)
    for lanes in (np.array([2, 0]), np.array([0, 1, 2, 3]), np.array([0])):
        counts = uniforms.drawn[lanes].tolist()
        expected = [
            [naive(2**62 + 5, 7 + n, c, place) for place in range(3)]
            for n, c in zip(lanes.tolist(), counts, strict=True)
        ]
        np.testing.assert_array_equal(uniforms.draw(lanes), expected)
    assert uniforms.drawn.tolist() == [3, 1, 2, 1]


def test_numbers_fill_0_to_1_evenly_along_lanes_and_along_time() -> None:
    uniforms = LaneUniforms(1, 1000, 2)
    drawn = np.stack([uniforms.draw(np.arange(1000)) for _ in range(50)])
    assert drawn.min() >= 0
    assert drawn.max() < 1
    cells = np.floor(drawn * 10).astype(int)
    for sums in (cells[..., 0], cells[..., 1]):
        counts = np.bincount(sums.reshape(-1), minlength=10)
        assert ((counts - 5000) ** 2 / 5000).sum() < 30  # chi-square with 9 degrees: 1 in 2,000
    for one, other in (
        (drawn[1:, :, 0], drawn[:-1, :, 0]),
        (drawn[:, 1:, 0], drawn[:, :-1, 0]),
        (drawn[..., 0], drawn[..., 1]),
    ):
        assert abs(np.corrcoef(one.reshape(-1), other.reshape(-1))[0, 1]) < 0.02


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lanes": np.array([0, 4])}, "lane 4 is not one of the 4"),
        ({"lanes": np.array([-1, 0])}, "lane -1 is not one of the 4"),
        ({"lanes": np.array([0, 1], np.int32)}, "lanes must be int64"),
        ({"keys": np.zeros(4, np.int64)}, "keys must be uint64"),
        ({"drawn": np.zeros(3, np.int64)}, "drawn must be an array of int64"),
        ({"drawn": np.zeros(4, np.float64)}, "drawn must be an array of int64"),
        ({"result": np.zeros((3, 2))}, "the result must be an array of float64"),
        ({"result": np.zeros((2, 2), np.float32)}, "the result must be an array of float64"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_drawn(change: dict[str, Any], message: str) -> None:
    given = {
        "keys": np.zeros(4, np.uint64),
        "drawn": np.zeros(4, np.int64),
        "lanes": np.arange(2),
        "result": np.zeros((2, 2)),
        **change,
    }
    with pytest.raises(ReplayError, match=message):
        _core.draw_lanes(**given)
    assert not given["drawn"].any()
    assert not given["result"].any()
