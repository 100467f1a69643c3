"""A network of the user's own that is random, or another one in training than when it acts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional as F

import freewheel
from freewheel.algos.make import make_algo, refuse_modes
from freewheel.config import assemble
from freewheel.contracts import Spaces
from freewheel.errors import ConfigError

ALGOS = ("dqn", "iqn", "sac", "ppo", "appo")


class Body(nn.Module):
    """Its layers, then what `after` does to their outputs."""

    def __init__(self, layer: nn.Module, after: Callable[[Tensor, bool], Tensor]) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), layer, nn.ReLU(inplace=True))
        self.after = after

    def forward(self, obs: Tensor) -> Tensor:
        return self.after(self.layers(obs), self.training)


def unchanged(out: Tensor, is_training: bool) -> Tensor:
    return out


def tracked() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (2, 4)), nn.InstanceNorm1d(2, track_running_stats=True), nn.Flatten())


RANDOM: dict[str, tuple[Body, str]] = {
    "dropout": (Body(nn.Dropout(0.3), unchanged), r"body.layers.1 \(Dropout\)"),
    "alpha dropout": (Body(nn.AlphaDropout(0.3), unchanged), r"body.layers.1 \(AlphaDropout\)"),
    "rrelu": (Body(nn.RReLU(), unchanged), r"body.layers.1 \(RReLU\)"),
    "a function": (Body(nn.Identity(), lambda out, training: F.dropout(out, 0.3, training)), r"body \(Body\)"),
    "in both modes": (Body(nn.Identity(), lambda out, training: out + torch.randn_like(out)), r"body \(Body\)"),
}
MODES: dict[str, tuple[Body, str]] = {
    "batch norm": (Body(nn.BatchNorm1d(8), unchanged), r"body.layers.1 \(BatchNorm1d\)"),
    "instance norm": (Body(tracked(), unchanged), r"body.layers.1.1 \(InstanceNorm1d\)"),
    "a question": (Body(nn.Identity(), lambda out, training: out * (1 + training)), r"body \(Body\)"),
}
PLAIN = {
    "layer norm": Body(nn.LayerNorm(8), unchanged),
    "no dropout": Body(nn.Dropout(0.0), unchanged),
}


def refuse(name: str, body: nn.Module) -> None:
    algo = make_algo(
        assemble("test", {"algo": name}, "none"),
        Spaces(
            spaces.Box(-1, 1, (4,), np.float32), spaces.Box(-1, 1, (2,)) if name == "sac" else spaces.Discrete(2), 1
        ),
        body=body,
    )
    before = {key: tensor.clone() for key, tensor in algo.net.state_dict().items()}
    drawn = torch.get_rng_state()
    try:
        refuse_modes(algo)
    finally:
        torch.testing.assert_close(dict(algo.net.state_dict()), before, rtol=0, atol=0)
        assert torch.equal(torch.get_rng_state(), drawn)


@pytest.mark.parametrize("algo", ALGOS)
def test_a_random_network_is_refused_and_its_layer_named(algo: str) -> None:
    for body, layer in RANDOM.values():
        with pytest.raises(ConfigError, match=rf"the network's (actor\.)?{layer} draws random numbers.*Take it out"):
            refuse(algo, body)


@pytest.mark.parametrize("algo", ALGOS)
def test_where_policies_are_compared_a_network_has_one_mode(algo: str) -> None:
    for body, layer in MODES.values():
        if algo in ("dqn", "iqn", "sac"):
            refuse(algo, body)
            continue
        with pytest.raises(
            ConfigError, match=rf"the network's {layer} gives something else .* {algo} compares .*LayerNorm"
        ):
            refuse(algo, body)


@pytest.mark.parametrize("algo", ALGOS)
def test_other_networks_pass(algo: str) -> None:
    for body in PLAIN.values():
        refuse(algo, body)


@pytest.mark.parametrize("algo", ["dqn", "ppo"])
def test_it_is_refused_before_a_run_begins(algo: str, tmp_path: Any) -> None:
    settings = {"runtime": "sequential", "eval_episodes": 0, "log.folder": str(tmp_path)}
    with pytest.raises(ConfigError, match="draws random numbers"):
        freewheel.train("CartPole-v1", algo=algo, steps=100, body=RANDOM["dropout"][0], settings=settings)
    assert list(tmp_path.iterdir()) == []


class Doubles(nn.Module):
    """Works in place on what it is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 8)

    def forward(self, obs: Tensor) -> Tensor:
        return self.layer(obs.mul_(2))


def test_a_network_that_writes_into_its_input_is_not_called_random() -> None:
    config = assemble("env", {"algo": "dqn", "net.hidden": (8,)}, "none")
    refuse_modes(make_algo(config, Spaces(spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(2), 1), body=Doubles()))


def test_a_frozen_parameter_is_named() -> None:
    body = Doubles()
    body.layer.bias.requires_grad_(False)
    config = assemble("env", {"algo": "dqn", "net.hidden": (8,)}, "none")
    with pytest.raises(ConfigError, match=r"parameter layer\.bias with requires_grad=False"):
        make_algo(config, Spaces(spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(2), 1), body=body)


@pytest.mark.parametrize(
    "given", [{"learner.batch_size": 1}, {"learner.accumulate": 32}, {"learner.workers": 2, "learner.accumulate": 16}]
)
def test_batch_norm_needs_two_rows(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="net.norm=batch needs at least 2 rows"):
        assemble("env", {"algo": "dqn", "net.norm": "batch", "learner.batch_size": 32, **given}, "none")
