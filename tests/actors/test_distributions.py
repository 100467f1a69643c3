"""Actions from outputs: how often each is drawn, how likely it is said to be, and what is never drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.distributions import Categorical, Normal

from freewheel.actors.sample_policy import Choices, Gaussian, actions_of
from freewheel.errors import ConfigError

Array = np.ndarray[Any, Any]
CHANCE = np.random.default_rng(1)


def outputs(rows: int, width: int) -> Array:
    return CHANCE.normal(size=(rows, width)).astype(np.float32)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(5, start=-2),
        spaces.MultiDiscrete([3, 2, 4], start=[1, 0, 5]),
        spaces.MultiDiscrete(np.array([[2, 3], [4, 2]])),
        spaces.MultiBinary(3),
        spaces.Box(-1, 1, (2, 2), np.float32),
    ],
    ids=["discrete", "multi", "multi-2d", "binary", "box"],
)
def test_what_is_drawn_belongs_to_the_space_and_has_the_chance_that_training_gives_it(space: Any) -> None:
    actions = actions_of(space)
    out = outputs(50, actions.num_outputs)
    noise = CHANCE.normal(size=(50, actions.num_noise)) if actions.is_normal else CHANCE.random((50, actions.num_noise))
    stored, log_prob = actions.sample(out, noise.astype(np.float32))
    assert stored.shape == (50, *space.shape)
    assert stored.dtype == space.dtype
    assert log_prob.dtype == np.float32
    for action in actions.for_env(stored):
        assert space.contains(np.asarray(action))
    for action in actions.for_env(actions.best(out)):
        assert space.contains(np.asarray(action))
    again, _ = actions.log_prob(torch.from_numpy(out), torch.from_numpy(stored))
    np.testing.assert_allclose(log_prob, again.numpy(), rtol=1e-4, atol=1e-5)


def test_chances_and_entropy_are_those_of_torch() -> None:
    out = torch.from_numpy(outputs(20, 7))
    choices = actions_of(spaces.MultiDiscrete([4, 3]))
    taken = torch.stack([torch.randint(4, (20,)), torch.randint(3, (20,))], 1)
    log_prob, entropy = choices.log_prob(out, taken)
    each = [Categorical(logits=out[:, :4]), Categorical(logits=out[:, 4:])]
    torch.testing.assert_close(log_prob, each[0].log_prob(taken[:, 0]) + each[1].log_prob(taken[:, 1]))
    torch.testing.assert_close(entropy, each[0].entropy() + each[1].entropy())
    box = actions_of(spaces.Box(-1, 1, (3,), np.float32))
    out, drawn = torch.from_numpy(outputs(20, 6)), torch.from_numpy(outputs(20, 3))
    log_prob, entropy = box.log_prob(out, drawn)
    normal = Normal(out[:, :3], out[:, 3:].exp())
    torch.testing.assert_close(log_prob, normal.log_prob(drawn).sum(1))
    torch.testing.assert_close(entropy, normal.entropy().sum(1))


def test_actions_come_as_often_as_their_chances_say() -> None:
    choices = actions_of(spaces.Discrete(4))
    chances = np.array([0.1, 0.6, 0.05, 0.25])
    many = 40_000
    out = np.tile(np.log(chances).astype(np.float32), (many, 1))
    stored, _ = choices.sample(out, CHANCE.random((many, 1), np.float32))
    seen = np.bincount(stored, minlength=4) / many
    np.testing.assert_allclose(seen, chances, atol=4 * np.sqrt(0.25 / many))


def test_a_normal_action_is_where_its_noise_says() -> None:
    box = actions_of(spaces.Box(-10, 10, (1,), np.float32))
    stored, _ = box.sample(np.array([[3.0, np.log(2.0)]], np.float32), np.array([[1.5]], np.float32))
    assert stored[0, 0] == pytest.approx(6.0)
    assert box.best(np.array([[3.0, 0.0]], np.float32))[0, 0] == 3.0


@pytest.mark.parametrize("share", [0.0, 0.5, 1 - 1e-6])
def test_what_is_forbidden_is_never_drawn(share: float) -> None:
    choices = actions_of(spaces.Discrete(6))
    for allowed in range(6):
        out = np.full((3, 6), -1e9, np.float32)
        out[:, allowed] = (-5.0, 0.0, 80.0)
        stored, log_prob = choices.sample(out, np.full((3, 1), share, np.float32))
        assert (stored == allowed).all()
        np.testing.assert_allclose(log_prob, 0, atol=1e-6)
        entropy = choices.log_prob(torch.from_numpy(out), torch.from_numpy(stored))[1]
        torch.testing.assert_close(entropy, torch.zeros(3))


@pytest.mark.parametrize("space", [spaces.Box(0, 5, (2,), np.int32), spaces.Text(5)])
def test_other_spaces_are_refused(space: Any) -> None:
    with pytest.raises(ConfigError, match="Wrap the env"):
        actions_of(space)


def test_the_kinds() -> None:
    assert isinstance(actions_of(spaces.Discrete(2)), Choices)
    assert isinstance(actions_of(spaces.Box(-1, 1, (1,))), Gaussian)
