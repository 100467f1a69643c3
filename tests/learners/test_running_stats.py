"""Statistics that go on for a whole run equal those of all rows at once."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from one_process import Parts
from ppo_reference import Noisy

from freewheel.algos.make import make_algo
from freewheel.algos.running_stats import Running
from freewheel.config import assemble
from freewheel.contracts import Spaces


@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=8), scale=st.floats(1e-3, 1e4), shift=st.floats(-1e3, 1e3)
)
@settings(max_examples=60, deadline=None)
def test_mean_and_variance_are_those_of_all_rows(sizes: list[int], scale: float, shift: float) -> None:
    chance = np.random.default_rng(len(sizes))
    parts = [chance.normal(shift, scale, (size, 3)) for size in sizes]
    running = Running(3)
    for part in parts:
        running.add(torch.from_numpy(part))
    every = np.concatenate(parts)
    assert running.count == len(every)
    np.testing.assert_allclose(running.mean, every.mean(0), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(running.var, every.var(0), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_rows_that_are_not_finite_are_left_out(bad: float) -> None:
    rows = np.random.default_rng(0).normal(size=(6, 3))
    rows[2, 1] = bad
    running = Running(3)
    running.add(torch.from_numpy(rows[2:3]))
    assert running.count == 0
    running.add(torch.from_numpy(rows))
    good = np.delete(rows, 2, 0)
    assert running.count == 5
    np.testing.assert_allclose(running.mean, good.mean(0), rtol=1e-9)
    np.testing.assert_allclose(running.var, good.var(0), rtol=1e-9)


@pytest.mark.parametrize("huge", [1e25, 1e300])
def test_an_observation_of_any_size_leaves_a_network_that_sees(huge: float) -> None:
    """Its square does not fit float32, nor does it itself: the worlds let it pass, since it is a finite float64."""
    settings = {"algo": "ppo", "ppo.normalize_obs": True}
    config = assemble("Huge", settings, "none")
    algo = make_algo(config, Spaces(spaces.Box(-np.inf, np.inf, (2,), np.float64), spaces.Discrete(2), 1))
    obs = np.random.default_rng(0).normal(size=(8, 2))
    obs[3, 0] = huge
    learner = SimpleNamespace(update=SimpleNamespace(passes=SimpleNamespace(net=algo.net)))
    algo.observe(SimpleNamespace(obs={"obs": obs}), learner)
    assert algo.net.norm.mean.isfinite().all()
    assert algo.net.norm.var.isfinite().all()
    seen = algo.net.seen(torch.from_numpy(obs))
    assert seen.isfinite().all()
    assert seen[:, 1].std() > 0.5


def watch(parts: Parts, rewards: list[list[tuple[float, bool]]], seen: list[Any]) -> None:
    """Writes down the rewards of each lane with where episodes end, and what is acted on."""
    receive = parts.group.receive

    def look(ready: Any, seconds: float) -> Any:
        ended = ready.ended
        for lane, reward in zip(ended.lanes, ended.reward, strict=True) if ended is not None else ():
            rewards[lane].append((float(reward), True))
        for lane, reward, first in zip(ready.lanes, ready.reward, ready.first, strict=True):
            if not first:
                rewards[lane].append((float(reward), False))
        seen.append(ready.obs["obs"].copy())
        return receive(ready, seconds)

    parts.group.receive = look  # type: ignore[method-assign]


@pytest.mark.parametrize("ends", [0.0, 0.2])
def test_observations_and_rewards_are_normalised_by_all_that_was_seen(ends: float) -> None:
    given = {"algo": "ppo", "world.lanes": 3, "rollout.rows": 10, "ppo.gamma": 0.9, "ppo.minibatches": 1}
    given |= {"ppo.normalize_obs": True, "ppo.normalize_reward": True, "ppo.epochs": 1}
    config = assemble("Noisy", given, "none")
    rewards: list[list[tuple[float, bool]]] = [[] for _ in range(3)]
    seen: list[Any] = []
    with Parts(config, partial(Noisy, spaces.Discrete(2), ends, 9)) as parts:
        watch(parts, rewards, seen)
        parts.learn(3)
        every = np.concatenate(seen[:30]).astype(np.float64)  # of the last one only the action is missing
        norm = parts.learner.update.passes.net.norm
        assert norm is not None
        np.testing.assert_allclose(norm.mean, every.mean(0), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(norm.var, every.var(0), rtol=1e-5, atol=1e-6)
        gathered = []
        for lane in rewards:
            sum_so_far = 0.0
            for reward, is_last in lane:
                sum_so_far = reward + 0.9 * sum_so_far
                gathered.append(sum_so_far)
                sum_so_far = 0.0 if is_last else sum_so_far
        scale = parts.learner.algo.reward_scale
        assert scale is not None
        assert scale.stats.count == len(gathered) == 90
        np.testing.assert_allclose(scale.stats.mean, np.mean(gathered), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(scale.stats.var, np.var(gathered), rtol=1e-4)
