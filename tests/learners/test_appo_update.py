"""Asynchronous PPO's targets: by the weights that learn, corrected for those that acted; with the same weights it is PPO."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from one_process import Parts

from freewheel.algos.appo import vtrace
from freewheel.config import assemble
from freewheel.learners.learner import BEATS
from freewheel.memory.lanes import as_tensors
from freewheel.memory.rollout import Collected


def built(algo: str, env: str = "CartPole-v1", **more: Any) -> Parts:
    given = {"algo": algo, "world.lanes": 3, "rollout.rows": 30, "net.hidden": (8,), "ppo.minibatches": 2, **more}
    given |= {"world.max_episode_steps": 12}
    return Parts(assemble(env, given, "none"), env)


def move(parts: Parts) -> None:
    parts.weights.add_(0.3 * torch.randn(parts.weights.shape, generator=torch.Generator().manual_seed(3)))


def prepared(parts: Parts, rows: Collected) -> dict[str, Any]:
    return parts.learner.algo.prepare(rows, parts.learner, True)


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_weights_that_have_not_moved_give_what_ppo_learns_from(env: str) -> None:
    batches = {}
    for algo in ("ppo", "appo"):
        with built(algo, env) as parts:
            batches[algo] = prepared(parts, parts.take())
    for name in ("log_prob", "advantage", "goal"):
        torch.testing.assert_close(batches["appo"][name], batches["ppo"][name], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("has_bootstraps", [True, False])
def test_weights_that_have_moved_value_every_row_anew(has_bootstraps: bool) -> None:
    with built("appo") as parts:
        rows = parts.take(has_bootstraps)
        assert rows.terminated.any() or len(rows.final_at[0])
        next_value = rows.next_value.copy()
        move(parts)
        batch = prepared(parts, rows)
        net, actions = parts.learner.update.passes.eval_net, parts.learner.algo.actions  # type: ignore[attr-defined]
        with torch.no_grad():
            out = net(as_tensors(rows.obs))
            finals = net(as_tensors(rows.final_obs))[:, -1].numpy()
            log_prob, _ = actions.log_prob(out[:, :-1], torch.from_numpy(rows.action))
    torch.testing.assert_close(batch["log_prob"], log_prob)
    value, ratio, after = np.zeros_like(rows.value), np.ones_like(rows.value), next_value
    value[rows.kept] = out[:, -1].numpy()
    ratio[rows.kept] = np.exp(log_prob.numpy() - rows.columns["log_prob"])
    assert np.abs(ratio - 1).max() > 0.05
    for lane, at in np.argwhere(rows.goes_on):
        after[lane, at] = value[lane, at + 1]
    after[rows.final_at] = finals
    goal, advantage = vtrace(rows.reward, value, after, rows.terminated, rows.goes_on, ratio, 0.99, 0.95)
    np.testing.assert_allclose(batch["goal"], goal[rows.kept], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(batch["advantage"], advantage[rows.kept], rtol=1e-4, atol=1e-4)
    if not has_bootstraps:  # then every lane is cut before a row, whose value is the learner's own too
        valued = {*zip(*(index.tolist() for index in rows.final_at), strict=True)}
        ends = [(lane, int(np.flatnonzero(rows.kept[lane])[-1])) for lane in range(3)]
        assert {end for end in ends if not rows.terminated[end]} <= valued


@pytest.mark.parametrize(("hurry", "epochs"), [(False, 3), (True, 1)])
def test_a_long_rollout_shows_life_and_ends_early_when_somebody_waits(hurry: bool, epochs: int) -> None:
    beats = []
    with built("appo", **{"ppo.epochs": 3}) as parts:
        learner = parts.learner
        learner._count = lambda which, n: beats.append(1) if which == BEATS else None
        parts.memory.is_hurried = lambda: hurry
        parts.learn(1)
    assert parts.memory.num_epochs == epochs
    assert len(beats) == 2 * epochs == learner.updates


def test_kept_rollouts_are_learned_from_again_beside_the_new_one() -> None:
    with built("appo", **{"ppo.epochs": 2, "rollout.reuse": 2}) as parts:
        assert parts.learn(4) == [2 * 90, 4 * 90, 6 * 90, 6 * 90]
        assert parts.learner.updates == 2 * (2 + 4 + 6 + 6)  # minibatches keep their size


def test_a_rollout_that_is_used_again_is_corrected_by_the_newest_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Any, ...]] = []
    with built("appo", **{"ppo.epochs": 1, "rollout.reuse": 1, "ppo.normalize_reward": True}) as parts:
        prepare = parts.learner.algo.prepare

        def spy(rows: Collected, learner: Any, is_new: bool) -> dict[str, Any]:
            made = prepare(rows, learner, is_new)
            seen.append((id(rows), rows.reward.copy(), made["log_prob"].clone(), is_new))
            return made

        monkeypatch.setattr(parts.learner.algo, "prepare", spy)
        parts.learn(2)
    (first, reward, before, is_new), (again, same_reward, after, is_again_new), _ = seen
    assert first == again
    assert (is_new, is_again_new) == (True, False)
    np.testing.assert_array_equal(reward, same_reward)  # scaled once
    assert not torch.equal(before, after)


def test_metrics_are_those_of_the_newest_rollout_also_where_earlier_ones_are_used_again() -> None:
    with built("appo", **{"ppo.epochs": 2, "rollout.reuse": 2, "learner.lr": 1e-2}) as parts:
        parts.learn(3)
        # In sequential the newest policy has collected the newest rollout itself; the kept ones are of other policies.
        assert parts.learner.metrics()["rho"] == pytest.approx(1.0, abs=1e-6)


def test_whole_episodes_become_minibatches_of_about_the_size_asked_for() -> None:
    sizes = []
    with built("ppo", **{"rollout.collect": "episodes", "ppo.epochs": 1, "rollout.rows": 20}) as parts:
        finish = parts.memory.finish

        def spy(minibatch: dict[str, Any]) -> Any:
            sizes.append(minibatch["log_prob"].numel())
            return finish(minibatch)

        parts.memory.finish = spy
        samples = parts.learn(3)
    assert sum(sizes) == sum(samples)
    assert min(samples) >= 60
    assert all(20 <= size <= 45 for size in sizes)  # of 30


def test_the_ratio_begins_at_one_in_bf16_too() -> None:
    """The probabilities of before are made in the update's precision."""
    with built("appo", "Pendulum-v1", **{"learner.precision": "bf16", "ppo.log_std": -4.0}) as parts:
        rows = parts.take()
        learner = parts.learner
        batch = prepared(parts, rows)
        actions = learner.algo.actions  # type: ignore[attr-defined]
        with torch.no_grad(), learner.update.passes.cast():
            out = learner.update.passes.net(as_tensors(rows.obs)).float()
        now, _ = actions.log_prob(out[:, :-1], torch.from_numpy(rows.action))
        exact, _ = actions.log_prob(
            learner.update.passes.net(as_tensors(rows.obs))[:, :-1], torch.from_numpy(rows.action)
        )
    torch.testing.assert_close(batch["log_prob"], now)
    assert (batch["log_prob"] - exact).abs().max() > 1e-3, "bf16 would not be seen here"
