from __future__ import annotations

import numpy as np
import torch
from gymnasium import spaces

from freewheel.actors.acting_copy import on_device
from freewheel.config import NetConfig, QConfig
from freewheel.nets.flat import Flat
from freewheel.nets.value_net import build_net


def test_the_copy_follows_what_was_fetched_only_when_told_to() -> None:
    net = build_net(
        spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(3), NetConfig(hidden=(8,), norm="batch"), QConfig(), "dqn"
    )
    flat = Flat(net)
    vector = flat.vector(net)
    flat.bind(net, vector).eval().requires_grad_(False)
    copy, refresh = on_device(net, vector, "cpu:0")
    seen = torch.randn(5, 4)
    before = net(seen).clone()
    torch.testing.assert_close(copy(seen), before, rtol=0, atol=0)
    vector.mul_(0.5)  # statistics of BatchNorm travel with the weights
    assert not torch.equal(net(seen), before)
    torch.testing.assert_close(copy(seen), before, rtol=0, atol=0)
    refresh()
    torch.testing.assert_close(copy(seen), net(seen), rtol=0, atol=0)
    assert not copy.training


def test_all_of_the_copy_is_on_the_device() -> None:
    net = build_net(spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(3), NetConfig(), QConfig(), "dqn")
    copy, _ = on_device(net, Flat(net).vector(net), "meta")
    assert {tensor.device.type for tensor in (*copy.parameters(), *copy.buffers())} == {"meta"}
