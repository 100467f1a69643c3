"""The network of a policy: its parts, how it begins, what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from freewheel.config import NetConfig
from freewheel.errors import ConfigError
from freewheel.nets.actor_critic import ActorCritic
from freewheel.nets.flat import Flat
from freewheel.nets.inputs import example

SMALL = NetConfig(hidden=(16, 8), activation="tanh", init="orthogonal")
VECTOR = spaces.Box(-1, 1, (4,), np.float32)
IMAGE = spaces.Box(0, 255, (36, 36, 3), np.uint8)
SPANS = [(0, 3)]


def build(space: Any = VECTOR, net: NetConfig = SMALL, **more: Any) -> ActorCritic:
    return ActorCritic(space, 3, net, **{"spans": SPANS, **more})


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("space", [VECTOR, IMAGE, spaces.Dict(a=VECTOR, b=spaces.Discrete(3))], ids=["v", "i", "dict"])
def test_outputs_and_value_of_each_row(space: Any, shared: bool) -> None:
    net = build(space, NetConfig(hidden=(16,), shared=shared))
    out = net(example(space, batch=5))
    assert out.shape == (5, 4)
    assert (net.value_body is None) == shared


def test_separate_bodies_share_nothing() -> None:
    net = build()
    value = net(torch.ones(2, 4))[:, -1].sum()
    grads = torch.autograd.grad(value, list(net.parameters()), allow_unused=True)
    named = zip(net.named_parameters(), grads, strict=True)
    touched = {name for (name, _), grad in named if grad is not None and grad.any()}
    assert touched
    assert all(name.startswith(("value_body.", "value.")) for name in touched)


def test_weights_begin_orthogonal_with_the_usual_gains() -> None:
    net = build()
    for layer, gain in ((net.body[0], 2**0.5), (net.value_body[0], 2**0.5), (net.policy, 0.01), (net.value, 1.0)):
        singular = torch.linalg.svdvals(layer.weight)
        torch.testing.assert_close(singular, torch.full_like(singular, gain), rtol=1e-4, atol=1e-5)
        assert not layer.bias.any()


def test_a_deviation_is_the_same_for_all_observations_and_is_learned() -> None:
    net = ActorCritic(VECTOR, 4, SMALL, log_std=-0.5)
    out = net(torch.randn(6, 4))
    assert out.shape == (6, 5)
    assert (out[:, 2:4] == -0.5).all()
    assert "log_std" in Flat(net).param_shapes


def test_statistics_travel_with_the_weights_and_bound_what_is_seen() -> None:
    net = build(normalize=True)
    flat = Flat(net)
    assert flat.size - flat.num_params == 8
    vector = flat.vector(net)
    flat.bind(net, vector)
    flat.views(vector)["norm.mean"].fill_(2.0)
    flat.views(vector)["norm.var"].fill_(0.25)
    seen = net.seen(torch.tensor([[2.0, 3.0, 1.0, 900.0]]))
    torch.testing.assert_close(seen, torch.tensor([[0.0, 2.0, -2.0, 10.0]]))


def test_a_network_of_ones_own() -> None:
    class Mine(nn.Module):
        def __init__(self, obs_space: Any) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 7)

        def forward(self, obs: Tensor) -> Tensor:
            return self.layer(obs).relu()

    net = build(body=Mine)
    assert net.policy.in_features == 7
    assert net(torch.zeros(3, 4)).shape == (3, 4)


MASK = spaces.MultiBinary(3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: build(spaces.Dict(a=VECTOR, action_mask=spaces.MultiBinary(4))), "3 numbers"),
        (lambda: build(spaces.Dict(a=VECTOR, action_mask=spaces.Discrete(3))), "3 numbers"),
        (lambda: build(spaces.Dict(action_mask=MASK)), "something else to see"),
        (lambda: build(spaces.Dict(a=VECTOR, action_mask=MASK), spans=(), log_std=0.0), "needs discrete actions"),
        (lambda: build(IMAGE, normalize=True), "normalize_obs"),
        (lambda: build(body="given:Mine"), r"body=\.\.\."),
        (lambda: build(body=nn.Unflatten(1, (2, 2))), "vector of features"),
    ],
)
def test_what_cannot_work_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
