"""Small policies in the core: what torch gives, for any number of rows and outputs, and refused where an array is not one to take."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from freewheel.config import NetConfig
from freewheel.errors import ReplayError
from freewheel.nets.actor_critic import ActorCritic, fast_forward


def made(size: int, outputs: int, **net: Any) -> ActorCritic:
    torch.manual_seed(1)
    space = spaces.Box(-1, 1, (size,), np.float32)
    return ActorCritic(space, outputs, NetConfig(**net)).eval().requires_grad_(False)


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 64])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("hidden", [(64, 64), (33, 5, 17)], ids=str)
def test_it_is_the_network(rows: int, activation: Any, hidden: tuple[int, ...]) -> None:
    for size, outputs in ((4, 2), (19, 18)):
        net = made(size, outputs, hidden=hidden, activation=activation, init="default")
        fast = fast_forward(net)
        assert fast is not None
        x = np.random.default_rng(0).standard_normal((rows, size), np.float32)
        with torch.inference_mode():
            expected = net(torch.from_numpy(x)).numpy()
        np.testing.assert_allclose(fast({"obs": x}), expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_what_is_no_number_stays_none_and_what_is_endless_is_cut_as_torch_cuts_it(activation: Any) -> None:
    net = made(1, 2, hidden=(3,), activation=activation)
    net.body[0].weight[:] = torch.tensor([[1.0], [-1.0], [0.5]])
    fast = fast_forward(net)
    assert fast is not None
    x = np.array([[np.nan], [np.inf], [-np.inf], [1e30]], np.float32)
    with torch.inference_mode():
        expected = net(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(fast({"obs": x})[:, :2], expected[:, :2], rtol=1e-5)


def test_arrays_that_do_not_fit_are_refused() -> None:
    fast: Any = fast_forward(made(4, 2, hidden=(8,), activation="tanh"))
    with pytest.raises(ReplayError, match="x must be float32"):
        fast._mlp.run(np.zeros((3, 5), np.float32), np.zeros((3, 3), np.float32))
    with pytest.raises(ReplayError, match=r"the result must be float32\[3,3 or more\]"):
        fast._mlp.run(np.zeros((3, 4), np.float32), np.zeros((3, 2), np.float32))
    read_only = np.zeros((3, 3), np.float32)
    read_only.flags.writeable = False
    with pytest.raises(ReplayError, match="an array to write to"):
        fast._mlp.run(np.zeros((3, 4), np.float32), read_only)
