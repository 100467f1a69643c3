"""Bodies for images: counted by hand, and the same numbers whatever way images lie in memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from freewheel.config import NetConfig, QConfig, assemble
from freewheel.errors import ConfigError
from freewheel.nets.actor_critic import ActorCritic
from freewheel.nets.inputs import has_images, set_memory_format
from freewheel.nets.value_net import QNet, build_net

FRAME = spaces.Box(0, 255, (84, 84), np.uint8)
IMPALA = NetConfig(body="impala", channels=(16, 32, 32), hidden=(256,))


def build(net: NetConfig, space: spaces.Box = FRAME, stack: int = 4, actions: int = 6) -> QNet:
    return build_net(space, spaces.Discrete(actions), net, QConfig(), "dqn", stack)


def size(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


def test_nature_has_the_parameters_counted_by_hand() -> None:
    convs = (4 * 64 * 32 + 32) + (32 * 16 * 64 + 64) + (64 * 9 * 64 + 64)
    assert size(build(NetConfig(body="cnn", hidden=(512,)))) == convs + (7 * 7 * 64 * 512 + 512) + (512 * 6 + 6)


def test_bias_free_convolutions_with_batch_norm_after_them_alone() -> None:
    frame = spaces.Box(0, 255, (128, 128), np.uint8)
    made = build(NetConfig(hidden=(512,), norm="batch_conv", conv_bias=False, init="he"), frame, 8, 12)
    convs = 8 * 64 * 32 + 32 * 16 * 64 + 64 * 9 * 64
    norms = 2 * (32 + 64 + 64)
    assert size(made) == convs + norms + (9216 * 512 + 512) + (512 * 12 + 12) == 4_811_596
    kinds = [type(module) for module in made.modules()]
    assert kinds.count(nn.BatchNorm2d) == 3
    assert nn.BatchNorm1d not in kinds


def test_impala_has_the_parameters_counted_by_hand() -> None:
    def section(inputs: int, outputs: int) -> int:
        return (inputs * 9 + 1) * outputs + 4 * (outputs * 9 + 1) * outputs

    # 84 becomes 42, 21, 11.
    expected = section(4, 16) + section(16, 32) + section(32, 32) + (11 * 11 * 32 * 256 + 256) + (256 * 6 + 6)
    made = build(IMPALA)
    assert size(made) == expected
    assert made(torch.zeros(2, 4, 84, 84, dtype=torch.uint8)).shape == (2, 6)


def test_a_residual_block_adds_to_what_it_was_given() -> None:
    body = build(IMPALA).body
    assert isinstance(body, nn.Sequential)
    block = body.sections.get_submodule("block00")
    x = torch.randn(2, 16, 5, 5)
    kept = x.clone()
    changed = block(x)
    assert torch.equal(x, kept)  # nothing in place that the sum reads
    for parameter in block.parameters():
        nn.init.zeros_(parameter)
    assert torch.equal(block(x), x)
    assert not torch.equal(changed, x)


def test_impala_serves_a_policy_too() -> None:
    net = ActorCritic(FRAME, 6, IMPALA, spans=((0, 6),), stack=4)
    assert net(torch.zeros(3, 4, 84, 84, dtype=torch.uint8)).shape == (3, 7)


def test_impala_by_name_has_its_usual_widths_unless_others_are_given() -> None:
    net = assemble("x:y", {"net.body": "impala"}, "none").net
    assert (net.channels, net.hidden) == ((16, 32, 32), (256,))
    assert assemble("x:y", {"net.body": "impala", "net.channels": (8, 8)}, "none").net.channels == (8, 8)
    with pytest.raises(ConfigError, match="net.kernels was given, but has no effect"):
        assemble("x:y", {"net.body": "impala", "net.kernels": (3, 3, 3)}, "none")


@pytest.mark.parametrize("net", [NetConfig(norm="batch_conv"), IMPALA], ids=["cnn", "impala"])
@pytest.mark.parametrize("shape", [(40, 40), (40, 40, 3)], ids=["grey", "colour"])
def test_the_memory_format_changes_no_result(net: NetConfig, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    space = spaces.Box(0, 255, shape, np.uint8)
    made = build(net, space, stack=2)
    obs = torch.randint(0, 256, (5, 2, *shape), dtype=torch.uint8)
    results = []
    for name in ("contiguous", "channels_last"):
        set_memory_format(made, name)
        image = made.body.image(obs)  # type: ignore[operator,union-attr]
        assert image.is_contiguous(memory_format=getattr(torch, name.replace("contiguous", "contiguous_format")))
        values = made(obs)
        results.append((values, torch.autograd.grad(values.sum(), list(made.parameters()))))
    (one, of_one), (other, of_other) = results
    torch.testing.assert_close(one, other)
    for mine, theirs in zip(of_one, of_other, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)


def test_which_networks_have_images() -> None:
    assert has_images(build(IMPALA))
    assert not has_images(build_net(spaces.Box(-1, 1, (4,)), spaces.Discrete(2), NetConfig(), QConfig(), "dqn"))
