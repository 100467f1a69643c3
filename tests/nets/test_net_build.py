"""Whole networks: shapes for every algorithm and space, the user's own bodies, and settings that cannot work."""

from __future__ import annotations

import itertools
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.func import functional_call

from freewheel.config import NetConfig, QConfig
from freewheel.errors import ConfigError
from freewheel.nets.inputs import example, has_images
from freewheel.nets.value_net import QNet, build_net

VECTOR = spaces.Box(-1, 1, (4,))
IMAGE = spaces.Box(0, 255, (36, 36, 3), np.uint8)
NESTED = spaces.Dict(pos=VECTOR, bag=spaces.Tuple((spaces.Discrete(3), spaces.MultiDiscrete([2, 3]))))
SPACES: list[spaces.Space[Any]] = [VECTOR, IMAGE, NESTED]
SMALL = NetConfig(hidden=(16, 8), channels=(4, 6), kernels=(8, 4), strides=(4, 2))
Q = QConfig(num_quantiles=5, num_atoms=7, num_cosines=6)
WIDTHS = {"dqn": None, "qrdqn": 5, "iqn": 9, "c51": 7, "rainbow": 7}
# What each algorithm asks of its network.
HOW: dict[str, dict[str, Any]] = {
    "dqn": {},
    "iqn": {"has_fractions": True},
    **{name: {"num_values": WIDTHS[name]} for name in ("qrdqn", "c51", "rainbow")},
}


def build(algo: str = "dqn", space: spaces.Space[Any] = VECTOR, net: NetConfig = SMALL, **more: Any) -> QNet:
    return build_net(space, spaces.Discrete(3), net, Q, algo, **HOW[algo], **more)


def run(net: nn.Module, space: spaces.Space[Any], algo: str, stack: int = 1) -> Tensor:
    out: Tensor = net(example(space, stack), None, torch.rand(2, 9) if algo == "iqn" else None)
    return out


@pytest.mark.parametrize("algo", WIDTHS)
def test_every_algorithm_reads_every_space(algo: str) -> None:
    width = WIDTHS[algo]
    for space, stack, dueling, noisy in itertools.product(SPACES, (1, 3), (False, True), (False, True)):
        q = replace(Q, dueling=dueling, noisy=noisy)
        net = build_net(space, spaces.Discrete(3, start=4), SMALL, q, algo, stack, **HOW[algo])
        assert run(net, space, algo, stack).shape == ((2, 3) if width is None else (2, 3, width))
        assert (net.num_noise > 0) == noisy
        assert (net.num_actions, net.first_action) == (3, 4)


@pytest.mark.parametrize("algo", WIDTHS)
def test_parameters_may_be_views_of_one_vector(algo: str) -> None:
    norms: tuple[Literal["none", "layer", "batch"], ...] = ("none", "layer", "batch")
    for space, norm in itertools.product(SPACES, norms):
        q = replace(Q, dueling=True, noisy=True)
        net = build_net(space, spaces.Discrete(3), replace(SMALL, norm=norm), q, algo, **HOW[algo]).eval()
        named = dict(net.named_parameters()) | dict(net.named_buffers())
        vector = torch.cat([tensor.detach().float().reshape(-1) for tensor in named.values()])
        parts = vector.split([tensor.numel() for tensor in named.values()])
        views = {name: part.view(named[name].shape) for name, part in zip(named, parts, strict=True)}
        obs, noise, taus = example(space), torch.randn(net.num_noise), torch.rand(2, 9)
        assert torch.equal(functional_call(net, views, (obs, noise, taus)), net(obs, noise, taus))
        assert not torch.equal(net(obs, noise, taus), net(obs, None, taus))
        vector.zero_()
        assert not functional_call(net, views, (obs, noise, taus)).any()


def test_names_depend_on_the_settings_alone() -> None:
    first = build("c51", NESTED)
    assert list(build("c51", NESTED).state_dict()) == list(first.state_dict())
    assert list(first.state_dict()) == [
        "body.layers.linear0.weight",
        "body.layers.linear0.bias",
        "body.layers.linear1.weight",
        "body.layers.linear1.bias",
        "head.advantage.weight",
        "head.advantage.bias",
    ]


def shapes(net: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in net.named_parameters() if not name.endswith("bias")}


def test_the_head_of_the_papers_has_the_last_hidden_layer() -> None:
    """A hidden layer for each dueling stream, noise in all layers after the body, IQN's fractions before the last hidden layer."""
    q = replace(Q, dueling=True, noisy=True)
    net = build_net(VECTOR, spaces.Discrete(3), SMALL, q, "iqn", has_fractions=True)
    own = {name: shape for name, shape in shapes(net).items() if "sigma" not in name}
    assert own == {
        "body.layers.linear0.weight": (16, 4),
        "embedding.linear.weight": (16, 6),
        "head.hidden.0.linear.weight": (8, 16),
        "head.hidden.1.linear.weight": (8, 16),
        "head.advantage.weight": (3, 8),
        "head.value.weight": (1, 8),
    }
    noisy = {name.removesuffix("_sigma") for name in shapes(net) if name.endswith("weight_sigma")}
    assert noisy == {f"head.{name}.weight" for name in ("hidden.0.linear", "hidden.1.linear", "advantage", "value")}
    assert net.num_noise == 2 * (16 + 8) + (8 + 3) + (8 + 1)


def test_the_head_of_a_workload_may_share_its_hidden_layer() -> None:
    """Gridworld agents: 625 to 250, cosines 64 to 250, noisy 250 to 250, then 4 and 1."""
    q = QConfig(dueling=True, noisy=True, head="shared")
    seen = spaces.Box(0, 1, (125,))
    net = build_net(seen, spaces.Discrete(4), NetConfig(hidden=(250, 250)), q, "iqn", 5, has_fractions=True)
    assert {name: shape for name, shape in shapes(net).items() if "sigma" not in name} == {
        "body.layers.linear0.weight": (250, 625),
        "embedding.linear.weight": (250, 64),
        "head.hidden.0.linear.weight": (250, 250),
        "head.advantage.weight": (4, 250),
        "head.value.weight": (1, 250),
    }


def test_a_linear_head_leaves_all_hidden_layers_to_the_body() -> None:
    q = replace(Q, dueling=True, noisy=True, head="linear")
    net = build_net(VECTOR, spaces.Discrete(3), SMALL, q, "dqn")
    assert net.head is not None
    assert len(net.head.hidden) == 0
    assert net.head.advantage.weight.shape == (3, 8)
    # So it is without anything that another head would serve: names and first weights are those of before.
    assert shapes(build("dqn")).keys() == shapes(build("dqn", net=replace(SMALL, init="he"))).keys()
    assert not any("hidden" in name for name in shapes(build("qrdqn")))


def test_fractions_do_not_multiply_raw_observations() -> None:
    one = replace(SMALL, hidden=(8,))
    assert len(build("iqn", net=one).head.hidden) == 0  # type: ignore[union-attr]
    assert len(build("iqn", IMAGE, net=one).head.hidden) == 1  # type: ignore[union-attr]
    assert len(build("rainbow", net=replace(one, hidden=())).head.hidden) == 0  # type: ignore[union-attr]


def test_norm_activation_and_init_hold_for_the_heads_hidden_layers() -> None:
    q = replace(Q, dueling=True)
    given = replace(SMALL, norm="batch", activation="tanh", init="orthogonal")
    net = build_net(VECTOR, spaces.Discrete(3), given, q, "iqn", has_fractions=True)
    assert net.head is not None
    layer: Any = net.head.hidden[0]
    assert (type(layer.norm), type(layer.activation)) == (nn.BatchNorm1d, nn.Tanh)
    gram = layer.linear.weight @ layer.linear.weight.T
    assert torch.allclose(gram, torch.eye(8) * (5 / 3) ** 2, atol=1e-4)
    net(torch.randn(5, 4), None, torch.rand(5, 9))
    assert layer.norm.num_batches_tracked == 1


def test_only_statistics_are_buffers() -> None:
    assert not list(build("iqn", NESTED, stack=2).buffers())
    normed = build("iqn", IMAGE, NetConfig(hidden=(8,), norm="batch", channels=(4,), kernels=(3,), strides=(2,)))
    kinds = {name.rpartition(".")[2] for name, _ in normed.named_buffers()}
    assert kinds == {"running_mean", "running_var", "num_batches_tracked"}


def test_first_weights_follow_the_seed() -> None:
    torch.manual_seed(3)
    first = build("rainbow")
    torch.manual_seed(3)
    second = build("rainbow")
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_auto_takes_images_for_images_and_flattens_the_rest() -> None:
    assert [has_images(build(space=space)) for space in (IMAGE, VECTOR, NESTED)] == [True, False, False]
    as_vector = build(space=IMAGE, net=NetConfig(body="mlp", hidden=(4,)))
    assert as_vector.body.layers.linear0.in_features == 36 * 36 * 3
    floats = spaces.Box(0, 1, (3, 36, 36), np.float32)
    assert run(build(space=floats, net=NetConfig(body="cnn", hidden=())), floats, "dqn").shape == (2, 3)


def test_convolutions_without_bias() -> None:
    with_bias, without = (
        build(space=IMAGE, net=NetConfig(hidden=(4,), kernels=(8, 4, 2), conv_bias=on)) for on in (True, False)
    )
    gone = set(dict(with_bias.named_parameters())) - set(dict(without.named_parameters()))
    assert gone == {f"body.convs.conv{i}.bias" for i in range(3)}


def test_no_hidden_layers_is_a_linear_map() -> None:
    net = build(net=NetConfig(hidden=()))
    assert [tuple(p.shape) for p in net.parameters()] == [(3, 4), (3,)]


class Twice(nn.Module):
    """A user's body: knows its space, and how many frames it sees."""

    def __init__(self, obs_space: spaces.Box, stack: int = 1) -> None:
        super().__init__()
        self.linear = nn.Linear(obs_space.shape[0] * stack, 6)

    def forward(self, obs: Tensor) -> Tensor:
        return self.linear(obs.flatten(1)).relu()


def lazy(obs_space: spaces.Space[Any]) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(5))


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
@pytest.mark.parametrize(
    ("body", "width"),
    [(Twice, 6), (lazy, 5), (Twice(VECTOR, 2), 6), (lambda space, stack: Twice(space, stack), 6)],
    ids=["class", "function", "object", "lambda"],
)
def test_a_body_of_ones_own(body: Any, width: int) -> None:
    for algo in WIDTHS:
        net = build(algo, body=body, stack=2)
        assert net.head is not None
        assert net.head.advantage.weight.shape[1] == width
        assert run(net, VECTOR, algo, stack=2).shape[:2] == (2, 3)


def test_a_body_by_import_string(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("my_nets")
    module.Twice = Twice  # type: ignore[attr-defined]
    module.nested = types.SimpleNamespace(ready=Twice(VECTOR))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_nets", module)
    assert isinstance(build(net=NetConfig(body="my_nets:Twice")).body, Twice)
    assert isinstance(build(net=NetConfig(body="my_nets:nested.ready")).body, Twice)


def test_a_module_is_copied_and_looked_at_without_a_trace() -> None:
    mine = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout())
    net = build(body=mine)
    assert net.body is not mine
    assert net.body.training
    assert not net.body[1].running_mean.any()
    with torch.no_grad():
        net.body[0].weight.zero_()
    assert mine[0].weight.any()


def test_bodies_get_observations_as_they_are() -> None:
    seen: list[Any] = []

    class Spy(nn.Module):
        def forward(self, obs: Any) -> Tensor:
            seen.append(obs)
            return torch.zeros(2, 4)

    build(space=IMAGE, body=Spy(), stack=2)
    assert (seen[0].dtype, seen[0].shape) == (torch.uint8, (2, 2, 36, 36, 3))
    build(space=NESTED, body=Spy())
    assert {name: part.dtype for name, part in seen[1].items()} == {
        "pos": torch.float32,
        "bag.0": torch.int64,
        "bag.1": torch.int64,
    }


def test_a_whole_network_of_ones_own() -> None:
    net = build(net=NetConfig(complete=True), body=nn.Linear(4, 3))
    assert run(net, VECTOR, "dqn").shape == (2, 3)
    assert net.num_noise == 0


WHOLE = NetConfig(complete=True)
WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "box-actions": (
        lambda: build_net(VECTOR, spaces.Box(-1, 1, (2,)), SMALL, Q, "dqn"),
        r"dqn .* needs a Discrete action space; this env has Box\(-1.0, 1.0, \(2,\).*Wrap the env",
    ),
    "several-actions": (
        lambda: build_net(VECTOR, spaces.MultiDiscrete([2, 2]), SMALL, Q, "iqn"),
        "iqn .*MultiDiscrete",
    ),
    "small-image": (
        lambda: build(space=spaces.Box(0, 255, (7, 7, 3), np.uint8), net=NetConfig()),
        r"convolution 0 has net.kernels=8, but images of 7 x 7 are 7 x 7 .*net.body=mlp",
    ),
    "small-after-two": (
        lambda: build(space=spaces.Box(0, 255, (35, 40, 3), np.uint8), net=NetConfig()),
        r"convolution 2 has net.kernels=3, but images of 35 x 40 are 2 x 3 when",
    ),
    "cnn-of-vector": (lambda: build(net=NetConfig(body="cnn")), r"net.body=cnn needs an image"),
    "typo": (
        lambda: build(net=NetConfig(body="mpl")),
        r"net.body='mpl' is neither auto, mlp, cnn, impala nor an import string",
    ),
    "no-module": (
        lambda: build(net=NetConfig(body="no_such:Net")),
        r"no module 'no_such'",
    ),
    "no-name": (lambda: build(net=NetConfig(body="math:Net")), r"math:Net: math has no 'Net'"),
    "not-callable": (
        lambda: build(net=NetConfig(body="math:pi")),
        r"net.body='math:pi' is float; give a torch.nn.Module",
    ),
    "not-a-module": (lambda: build(body=lambda space: 3), r"gave int; a network is a torch.nn.Module"),
    "fails-to-make": (lambda: build(body=lambda: nn.Identity()), r"failed to build from Box.*TypeError"),
    "fails-to-run": (lambda: build(body=nn.Linear(5, 2)), r"Linear failed on two observations of Box.*\(2, 4\)"),
    "fails-on-parts": (lambda: build(space=NESTED, body=nn.Linear(5, 2)), r"failed on two .*'bag.0': \(2,\)"),
    "no-batch": (lambda: build(body=nn.Flatten(0)), r"gave torch.float32 \(8,\) for a batch of 2"),
    "whole-numbers": (lambda: build(space=spaces.Discrete(3), body=nn.Identity()), r"gave torch.int64"),
    "image-features": (
        lambda: build(space=spaces.Box(0, 1, (3, 8, 8)), body=nn.Conv2d(3, 2, 3)),
        r"gives \(2, 6, 6\) for one observation; a body gives a vector.*flatten",
    ),
    "doubles": (lambda: build(body=nn.Sequential(Doubles())), r"parameter 0.linear.weight of torch.float64"),
    "whole-of-ours": (lambda: build(net=WHOLE), r"net.complete=true .* but net.body=auto"),
    "whole-quantiles": (lambda: build("qrdqn", net=WHOLE, body=nn.Linear(4, 3)), r"which qrdqn cannot use.*algo dqn"),
    "whole-dueling": (
        lambda: build_net(VECTOR, spaces.Discrete(3), WHOLE, QConfig(dueling=True), "dqn", body=nn.Linear(4, 3)),
        r"which dqn with dueling cannot use",
    ),
    "whole-too-wide": (lambda: build(net=WHOLE, body=nn.Linear(4, 5)), r"gives \(5,\).* 3 actions, \(3,\)"),
}


class Doubles(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2).double()

    def forward(self, obs: Tensor) -> Tensor:
        return self.linear(obs.double())


def test_what_cannot_work_is_refused() -> None:
    for attempt, message in WRONG.values():
        with pytest.raises(ConfigError, match=message):
            attempt()


def test_iqn_asks_for_its_fractions() -> None:
    with pytest.raises(TypeError, match=r"call it with taus"):
        build("iqn")(example(VECTOR))
