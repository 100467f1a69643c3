"""The memory of rollouts: minibatches of every kept row, and an example that is like them before there is any."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from one_process import Parts
from ppo_reference import Noisy

from freewheel.config import assemble
from freewheel.memory.nested import leaves

SPACES: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(3, start=2),
    "multi": spaces.MultiDiscrete([2, 4], start=[1, -3]),
    "binary": spaces.MultiBinary(3),
    "box": spaces.Box(-0.5, 0.5, (2,), np.float32),
}


def built(kind: str = "discrete", **more: Any) -> Parts:
    given = {"algo": "ppo", "world.lanes": 3, "rollout.rows": 16, "net.hidden": (8,), "ppo.minibatches": 4}
    return Parts(assemble("Noisy", {**given, **more}, "none"), partial(Noisy, SPACES[kind]))


def prepared(parts: Parts) -> tuple[Any, Any]:
    """A lesson, and its rows as the algorithm prepares them."""
    parts.collect()
    lesson = parts.memory.lesson(0.0, 0, parts.learner.bootstraps)
    return lesson, parts.learner.algo.prepare(lesson.rows[0], parts.learner, True)


def batches_of(parts: Parts) -> Any:
    lesson, rows = prepared(parts)
    return lesson.batches([rows])


@pytest.mark.parametrize("stack", [1, 2])
@pytest.mark.parametrize("kind", SPACES)
def test_an_example_has_the_layout_of_every_minibatch(kind: str, stack: int) -> None:
    with built(kind, **{"world.stack": stack, "ppo.value_clip": 0.1}) as parts:
        example, draws = parts.memory.example()
        assert draws == {}
        for action in np.atleast_1d(example["action"].numpy()):  # its actions are actions
            assert SPACES[kind].contains(np.asarray(action, SPACES[kind].dtype)) or kind == "discrete"
        assert kind != "discrete" or set(example["action"].tolist()) == {2}
        parts.learner.update(example, {}, {"lr": 0.0, "clip": 0.2})
        minibatches = [batch for drawn in batches_of(parts) for batch in drawn.given]
        assert len(minibatches) == 4 * 4
        for batch in minibatches:
            assert list(batch) == list(example)
            assert [(t.shape, t.stride(), t.dtype) for t in leaves(batch)] == [
                (t.shape, t.stride(), t.dtype) for t in leaves(example)
            ]


def test_every_row_is_in_each_epoch_once_and_in_another_order() -> None:
    with built(**{"ppo.epochs": 2, "ppo.normalize_advantage": False}) as parts:
        lesson, rows = prepared(parts)
        goals = [drawn.given[0]["goal"] for drawn in lesson.batches([rows])]
        first, second = torch.cat(goals[:4]), torch.cat(goals[4:])
        assert not torch.equal(first, second)
        torch.testing.assert_close(first.sort().values, second.sort().values, rtol=0, atol=0)
        torch.testing.assert_close(first.sort().values, rows["goal"].sort().values, rtol=0, atol=0)
        assert (parts.memory.num_epochs, parts.memory.num_samples) == (2, 2 * 48)


def test_minibatches_of_one_call_are_stacked_and_normalised_each_by_itself() -> None:
    with built() as parts:
        parts.memory.unrolled = 2
        for drawn in batches_of(parts):
            (batch,) = drawn.given
            assert batch["obs"].shape == (2, 12, 3)
            torch.testing.assert_close(batch["advantage"].mean(1), torch.zeros(2), rtol=0, atol=1e-5)
            torch.testing.assert_close(batch["advantage"].std(1), torch.ones(2), rtol=1e-4, atol=0)
