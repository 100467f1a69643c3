"""Acting in int8: near the network it follows, told with speed and agreement, refused where there is nothing to do."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from freewheel.actors.acting_copy import agreement, int8_copy
from freewheel.config import NetConfig, QConfig
from freewheel.errors import ConfigError
from freewheel.nets.flat import Flat
from freewheel.nets.inputs import any_observations
from freewheel.nets.value_net import QNet, build_net

FRAME = spaces.Box(0, 255, (36, 36), np.uint8)


def bound(**more: Any) -> tuple[QNet, torch.Tensor]:
    torch.manual_seed(0)
    made = build_net(FRAME, spaces.Discrete(4), NetConfig(hidden=(64,), **more), QConfig(), "dqn", 2)
    flat = Flat(made)
    vector = flat.vector(made)
    flat.bind(made, vector).eval().requires_grad_(False)
    return made, vector


def test_it_follows_the_weights_when_it_is_told_to() -> None:
    net, vector = bound(norm="batch_conv")
    obs = any_observations(FRAME, 2, 64)["obs"]
    whole, refresh = int8_copy(net)
    for _ in range(2):
        refresh()
        plain, own = net(obs), whole(obs)
        assert not torch.equal(plain, own)
        assert (plain - own).abs().max() < 0.05 * plain.abs().max()
        vector[: 10**9] *= 1.5
    assert (net(obs) - whole(obs)).abs().max() > 0.05 * net(obs).abs().max()  # until the next refresh


def test_convolutions_and_statistics_are_those_of_the_network_itself() -> None:
    net, _ = bound(norm="batch_conv")
    whole, _ = int8_copy(net)
    mine = dict(net.named_parameters()) | dict(net.named_buffers())
    kept = dict(whole.named_parameters()) | dict(whole.named_buffers())
    assert set(mine) - set(kept) == {f"{name}.{what}" for name in LINEAR for what in ("weight", "bias")}
    assert all(tensor.data_ptr() == mine[name].data_ptr() for name, tensor in kept.items())
    assert type(net.get_submodule(LINEAR[0])) is nn.Linear  # the network is as it was


LINEAR = ("body.layers.linear0",)  # the head stays as it is


def test_nothing_of_torchs_own_warnings_is_seen() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        int8_copy(bound()[0])[1]()


def test_a_network_without_linear_maps_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no torch\.nn\.Linear"):
        int8_copy(nn.Sequential(nn.Conv2d(1, 1, 1)))


def test_agreement_is_the_share_of_equal_actions() -> None:
    one = {"action": np.array([0, 1, 2, 3])}
    assert agreement(one, {"action": np.array([0, 1, 2, 0])}) == 0.75
    many = {"action": np.array([[0, 1], [1, 1]])}
    assert agreement(many, {"action": np.array([[0, 1], [1, 0]])}) == 0.5  # all parts of an action
