"""F12: the sum tree against a plain array."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from freewheel import _core
from freewheel.errors import ReplayError


@settings(max_examples=100, deadline=None)
@given(size=st.integers(1, 5000), seed=st.integers(0, 2**32), rounds=st.integers(1, 20))
def test_f12_sum_equals_leaves_with_duplicates(size: int, seed: int, rounds: int) -> None:
    rng = np.random.default_rng(seed)
    tree, plain = _core.SumTree(size), np.zeros(size, np.float32)
    for _ in range(rounds):
        n = int(rng.integers(1, 300))
        leaves = rng.integers(0, size, n, dtype=np.uint32)  # many come twice
        values = (rng.exponential(size=n) * 10.0 ** rng.integers(-6, 6)).astype(np.float32)
        values[rng.random(n) < 0.2] = 0
        tree.update(leaves, values)
        for leaf, value in zip(leaves, values, strict=True):  # the last one stays
            plain[leaf] = value
        assert tree.total() == pytest.approx(plain.astype(np.float64).sum(), rel=1e-9)
    if tree.total() > 0:
        drawn = tree.draw(rng.random(500))
        assert (plain[drawn] > 0).all()


def test_f12_sum_equals_leaves_after_a_million_operations() -> None:
    size = 100_000
    rng = np.random.default_rng(0)
    tree, plain = _core.SumTree(size), np.zeros(size, np.float32)
    for _ in range(1000):
        leaves = rng.integers(0, size, 1000, dtype=np.uint32)
        values = rng.exponential(size=1000).astype(np.float32) ** 3
        tree.update(leaves, values)
        plain[leaves] = values  # numpy too lets the last one stay
    assert tree.total() == pytest.approx(plain.astype(np.float64).sum(), rel=1e-9)
    np.testing.assert_array_equal([tree.value(i) for i in range(0, size, 97)], plain[::97])


@pytest.mark.parametrize("size", [1, 15, 16, 17, 256, 4097])
def test_f12_draws_match_values(size: int) -> None:
    rng = np.random.default_rng(size)
    values = rng.exponential(size=size).astype(np.float32) + np.float32(0.01)
    values[rng.random(size) < 0.1] = 0
    values[0] = 1
    tree = _core.SumTree(size)
    tree.update(np.arange(size, dtype=np.uint32), values)
    draws = 200_000
    counts = np.bincount(tree.draw(rng.random(draws)), minlength=size)
    assert (counts[values == 0] == 0).all()
    expected = values[values > 0].astype(np.float64)
    expected *= draws / expected.sum()
    if len(expected) > 1:
        assert stats.chisquare(counts[values > 0], expected).pvalue > 0.001


def test_the_ends_of_the_range_are_drawn_safely() -> None:
    tree = _core.SumTree(1000)
    leaves = np.array([3, 500, 998], np.uint32)
    tree.update(leaves, np.array([1e-30, 1.0, 1e-30], np.float32))
    assert set(tree.draw(np.array([0.0, 0.5, np.nextafter(1, 0)]))) <= {3, 500, 998}


def test_bad_calls_are_refused() -> None:
    tree = _core.SumTree(10)
    with pytest.raises(ReplayError, match="every leaf is 0"):
        tree.draw(np.array([0.5]))
    with pytest.raises(ReplayError, match="leaf 10 does not exist"):
        tree.update(np.array([10], np.uint32), np.ones(1, np.float32))
    with pytest.raises(ReplayError, match="must be finite and not negative"):
        tree.update(np.array([1], np.uint32), np.array([np.nan], np.float32))
    with pytest.raises(ReplayError, match="1 to 2\\^32 - 1 leaves"):
        _core.SumTree(0)
