"""Acting in bf16: near the network it follows, whose own numbers it leaves alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from freewheel.actors.acting_copy import bf16_copy
from freewheel.config import NetConfig, QConfig
from freewheel.machine.precision import why_not
from freewheel.nets.flat import Flat
from freewheel.nets.inputs import any_observations
from freewheel.nets.value_net import QNet, build_net

FRAME = spaces.Box(0, 255, (36, 36), np.uint8)


@pytest.fixture(autouse=True)
def runs_here() -> None:
    if why := why_not("bf16", "cpu"):
        pytest.skip(why)


def bound() -> tuple[QNet, torch.Tensor]:
    torch.manual_seed(0)
    made = build_net(FRAME, spaces.Discrete(4), NetConfig(hidden=(64,), norm="batch_conv"), QConfig(), "dqn", 2)
    flat = Flat(made)
    vector = flat.vector(made)
    flat.bind(made, vector).eval().requires_grad_(False)
    return made, vector


def test_it_follows_the_weights_when_it_is_told_to() -> None:
    net, vector = bound()
    obs = any_observations(FRAME, 2, 64)["obs"]
    own, refresh = bf16_copy(net)
    for _ in range(2):
        refresh()
        plain, narrow = net(obs), own(obs)
        assert narrow.dtype == torch.float32
        assert not torch.equal(plain, narrow)
        assert (plain - narrow).abs().max() < 0.05 * plain.abs().max()
        vector *= 1.5
    assert (net(obs) - own(obs)).abs().max() > 0.05 * net(obs).abs().max()  # until the next refresh


def test_the_network_is_as_it_was_and_norms_are_its_own() -> None:
    net, vector = bound()
    before = vector.clone()
    own, refresh = bf16_copy(net)
    refresh()
    assert torch.equal(vector, before)
    assert {tensor.dtype for tensor in net.parameters()} == {torch.float32}
    norm = next(module for module in net.modules() if isinstance(module, torch.nn.BatchNorm2d))
    theirs = next(module for module in own.modules() if isinstance(module, torch.nn.BatchNorm2d))
    assert norm.weight.data_ptr() == theirs.weight.data_ptr()
