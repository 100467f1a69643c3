"""What PPO shares with all algorithms: a minibatch in parts, among workers or as a graph has the gradient of the whole."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from one_process import Parts
from test_ppo_update import SPACES, built

from freewheel.config import LearnerConfig
from freewheel.learners.gradient_workers import SharedGradients, WorkersMemory, work
from freewheel.learners.update import Update

HYPER = {"lr": 3e-3, "clip": 0.2}
MORE = {"ppo.value_clip": 0.1, "net.shared": True}


def minibatches(parts: Parts) -> list[dict[str, Any]]:
    """Those of one lesson, as the update gets them."""
    parts.collect()
    learner = parts.learner
    lesson = parts.memory.lesson(0.0, 0, learner.bootstraps)
    rows = learner.algo.prepare(lesson.rows[0], learner, True)
    return [batch for drawn in lesson.batches([rows]) for batch in drawn.given]


def alike(parts: Parts, **settings: Any) -> Update:
    """An update of its own with the same first weights."""
    algo = parts.runtime.plan.policies[0].algo()
    return Update(algo, LearnerConfig(adam_eps=1e-5, **settings))


def assert_same(given: Any, expected: Any) -> None:
    torch.testing.assert_close(given.loss, expected.loss, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(given.norm, expected.norm, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(given.outcome, expected.outcome, rtol=1e-3, atol=1e-5)


def test_advantages_are_normalised_over_the_whole_minibatch() -> None:
    with built(SPACES["discrete"]) as parts:
        for batch in minibatches(parts):
            advantage = batch["advantage"]
            assert advantage.mean().item() == pytest.approx(0.0, abs=1e-5)
            assert advantage.std().item() == pytest.approx(1.0, abs=1e-4)
            assert abs(advantage[:4].mean().item()) > 1e-3  # a part of it is not


@pytest.mark.parametrize("kind", SPACES)
def test_parts_of_a_minibatch_give_the_gradient_of_the_whole(kind: str) -> None:
    with built(SPACES[kind], **MORE) as parts:
        batches = minibatches(parts)
        whole, in_parts = alike(parts), alike(parts, accumulate=3)
        for batch in batches:
            assert_same(in_parts(batch, {}, HYPER), whole(batch, {}, HYPER))
        assert in_parts.num_parts == 3
        torch.testing.assert_close(in_parts.state.weights, whole.state.weights, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", SPACES)
def test_two_workers_give_the_gradient_of_one(kind: str) -> None:
    with built(SPACES[kind], **MORE) as parts:
        batches = minibatches(parts)
        alone, leader, other = (alike(parts) for _ in range(3))
        shared = WorkersMemory(2, leader, parts.memory.example()[0], {})
        SharedGradients(leader, shared)
        thread = threading.Thread(target=work, args=(shared, 1, other, lambda: False))
        thread.start()
        try:
            for n, batch in enumerate(batches):
                hyper = HYPER | {"clip": 0.2 / (1 + n)}  # as it falls, which the workers have to know
                assert_same(leader(batch, {}, hyper), alone(batch, {}, hyper))
        finally:
            shared.dismiss()
            thread.join(20)
        torch.testing.assert_close(leader.state.weights, alone.state.weights, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("accumulate", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_a_compiled_update_is_the_eager_one(accumulate: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Really compiled: by an example that was made before any row."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with built(SPACES["multi"], **MORE) as parts:
        batches = minibatches(parts)
        eager, compiled = (alike(parts, accumulate=accumulate) for _ in range(2))
        compiled.compile(*parts.memory.example())
        for n, batch in enumerate(batches):
            hyper = HYPER | {"clip": 0.2 / (1 + n)}
            assert_same(compiled(batch, {}, hyper), eager(batch, {}, hyper))
        assert compiled.is_compiled
        assert compiled.notes == []
        torch.testing.assert_close(compiled.state.weights, eager.state.weights, rtol=1e-3, atol=1e-4)
