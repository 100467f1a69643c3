"""Asynchronous PPO's targets: by the weights that learn, corrected for those that acted; with the same weights it is PPO."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from freewheel.algos.vtrace import vtrace
from freewheel.config import assemble
from freewheel.memory.rollout import Collected
from freewheel.nets.inputs import as_tensors
from freewheel.run.on_policy_parts import PolicyParts, build_on_policy


def built(algo: str, env: str = "CartPole-v1", **more: Any) -> PolicyParts:
    given = {"algo": algo, "world.lanes": 3, "rollout.rows": 30, "net.hidden": (8,), "ppo.minibatches": 2, **more}
    given |= {"world.max_episode_steps": 12}
    return build_on_policy(assemble(env, given, "none"), env)


def collect(parts: PolicyParts, without_tail: bool = False) -> Collected:
    taken: Collected | None = None
    while taken is None:
        parts.actor.receive(0)
        taken = parts.rollout.take(0, None if without_tail else parts.actor.tail())
        parts.actor.answer(0)
    return taken


def move(parts: PolicyParts) -> None:
    weights = parts.learner.step.state.weights
    weights += 0.3 * torch.randn(weights.shape, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_weights_that_have_not_moved_give_what_ppo_learns_from(env: str) -> None:
    batches = {}
    for algo in ("ppo", "appo"):
        parts = built(algo, env)
        try:
            batches[algo] = parts.learner.prepared(collect(parts))
        finally:
            parts.close()
    for name in ("log_prob", "advantage", "goal"):
        torch.testing.assert_close(batches["appo"][name], batches["ppo"][name], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("without_tail", [False, True])
def test_weights_that_have_moved_value_every_row_anew(without_tail: bool) -> None:
    parts = built("appo")
    try:
        rows = collect(parts, without_tail)
        assert rows.terminated.any() or len(rows.final_at[0])
        tail_value = rows.next_value.copy()
        move(parts)
        batch = parts.learner.prepared(rows)
        net, actions = parts.learner.step.act_net, parts.learner.step.ppo.actions
        with torch.no_grad():
            out = net(as_tensors(rows.obs))
            finals = net(as_tensors(rows.final_obs))[:, -1].numpy()
            log_prob, _ = actions.log_prob(out[:, :-1], torch.from_numpy(rows.action))
    finally:
        parts.close()
    torch.testing.assert_close(batch["log_prob"], log_prob)
    value, ratio, after = np.zeros_like(rows.value), np.ones_like(rows.value), tail_value
    value[rows.kept] = out[:, -1].numpy()
    ratio[rows.kept] = np.exp(log_prob.numpy() - rows.log_prob)
    assert np.abs(ratio - 1).max() > 0.05
    for lane, at in np.argwhere(rows.goes_on):
        after[lane, at] = value[lane, at + 1]
    after[rows.final_at] = finals
    goal, advantage = vtrace(rows.reward, value, after, rows.terminated, rows.goes_on, ratio, 0.99, 0.95)
    np.testing.assert_allclose(batch["goal"], goal[rows.kept], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(batch["advantage"], advantage[rows.kept], rtol=1e-4, atol=1e-4)
    if without_tail:  # then every lane is cut before a row, whose value is the learner's own too
        valued = {*zip(*(index.tolist() for index in rows.final_at), strict=True)}
        ends = [(lane, int(np.flatnonzero(rows.kept[lane])[-1])) for lane in range(3)]
        assert {end for end in ends if not rows.terminated[end]} <= valued


@pytest.mark.parametrize(("hurry", "epochs"), [(False, 3), (True, 1)])
def test_a_long_rollout_shows_life_and_ends_early_when_somebody_waits(hurry: bool, epochs: int) -> None:
    parts = built("appo", **{"ppo.epochs": 3})
    beats = []
    learner = parts.learner
    learner.beat, learner.is_hurried = (lambda: beats.append(1)), (lambda: hurry)
    try:
        steps = 0
        while not learner.version:
            steps += parts.actor.receive(steps)[0]
            learner.call(steps, parts.actor.tail())
            parts.actor.answer(learner.version)
    finally:
        parts.close()
    assert learner.epochs_done == epochs
    assert len(beats) == 2 * epochs == learner.updates


def trained(parts: PolicyParts, versions: int) -> list[int]:
    """Learns from so many rollouts; the rows that each one's updates were made with."""
    steps, samples = 0, []
    while parts.learner.version < versions:
        steps += parts.actor.receive(steps)[0]
        if parts.learner.call(steps, parts.actor.tail()):
            samples.append(parts.learner.samples_done)
        parts.actor.answer(parts.learner.version)
    return samples


def test_kept_rollouts_are_learned_from_again_beside_the_new_one() -> None:
    parts = built("appo", **{"ppo.epochs": 2, "rollout.reuse": 2})
    try:
        assert trained(parts, 4) == [2 * 90, 4 * 90, 6 * 90, 6 * 90]
        assert parts.learner.updates == 2 * (2 + 4 + 6 + 6)  # minibatches keep their size
    finally:
        parts.close()


def test_a_rollout_that_is_used_again_is_corrected_by_the_newest_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = built("appo", **{"ppo.epochs": 1, "rollout.reuse": 1})
    learner, seen = parts.learner, []
    prepare = learner.prepared

    def spy(rows: Collected) -> dict[str, Any]:
        made = prepare(rows)
        seen.append((id(rows), rows.reward.copy(), made["log_prob"].clone()))
        return made

    monkeypatch.setattr(learner, "prepared", spy)
    try:
        trained(parts, 2)
    finally:
        parts.close()
    (first, reward, before), (again, same_reward, after), _ = seen
    assert first == again
    np.testing.assert_array_equal(reward, same_reward)
    assert not torch.equal(before, after)


def test_figures_are_those_of_the_newest_rollout_also_where_earlier_ones_are_used_again() -> None:
    parts = built("appo", **{"ppo.epochs": 2, "rollout.reuse": 2, "learner.lr": 1e-2})
    try:
        trained(parts, 3)
        # In turn the newest policy has collected the newest rollout itself; the kept ones are of other policies.
        assert parts.learner.figures()["rho"] == pytest.approx(1.0, abs=1e-6)
    finally:
        parts.close()


def test_whole_episodes_become_minibatches_of_about_the_size_asked_for() -> None:
    parts = built("ppo", **{"rollout.collect": "episodes", "ppo.epochs": 1, "rollout.rows": 20})
    learner, sizes = parts.learner, []
    update = learner.step.update

    def spy(batch: dict[str, Any], lr: float, clip: float) -> Any:
        sizes.append(batch["log_prob"].numel())
        return update(batch, lr, clip)

    learner.step.update = spy  # type: ignore[method-assign,assignment]
    try:
        samples = trained(parts, 3)
    finally:
        parts.close()
    assert sum(sizes) == sum(samples)
    assert min(samples) >= 60
    assert all(20 <= size <= 45 for size in sizes)  # of 30
