"""Values, logits and a policy's outputs are float32 whatever the precision of the body: bf16 has 8 bits, in which large values tie."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from freewheel.actors.acting_copy import bf16_copy, int8_copy
from freewheel.algos.make import make_algo
from freewheel.config import LearnerConfig, NetConfig, QConfig, find_algo
from freewheel.contracts import Spaces
from freewheel.learners.update import Update
from freewheel.machine.precision import why_not
from freewheel.nets.actor_critic import ActorCritic
from freewheel.nets.soft_actor_critic import SoftActorCritic
from freewheel.nets.value_net import QNet, build_net

OBS, ACTIONS, ROWS, FAR = spaces.Box(-1, 1, (6,)), spaces.Discrete(4), 256, 100.0
NET = NetConfig(hidden=(64, 64))
Pass = Callable[[nn.Module, Tensor], Tensor]  # to the numbers that must not tie


@pytest.fixture(autouse=True)
def runs_here() -> None:
    if why := why_not("bf16", "cpu"):
        pytest.skip(why)


def values(q: QConfig, **more: Any) -> tuple[QNet, Pass]:
    made = build_net(OBS, ACTIONS, NET, q, "dqn", **more)
    taus = torch.full((1, 3), 0.5) if more.get("has_fractions") else None
    noise = torch.randn(made.num_noise) if made.num_noise else None
    return made, lambda net, obs: net(obs, noise, taus).reshape(ROWS, -1)


def complete(net: nn.Module) -> tuple[QNet, Pass]:
    own = NetConfig(complete=True)
    return build_net(OBS, ACTIONS, own, QConfig(), "dqn", body=net), lambda net, obs: net(obs)


def soft() -> tuple[nn.Module, Callable[..., Tensor]]:
    made = SoftActorCritic(OBS, 2, NET, 1.0)
    return made, lambda net, obs: torch.cat([net(obs), net(obs, obs[:, :2])], 1)


NETS: dict[str, Callable[[], tuple[nn.Module, Pass]]] = {
    "dqn": lambda: values(QConfig()),
    "dueling": lambda: values(QConfig(dueling=True)),
    "noisy": lambda: values(QConfig(dueling=True, noisy=True)),
    "iqn": lambda: values(QConfig(), has_fractions=True),
    "complete": lambda: complete(nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 4))),
    "ppo": lambda: (ActorCritic(OBS, 4, NET), lambda net, obs: net(obs)),
    "sac": soft,
}


def far_away(net: nn.Module) -> nn.Module:
    """The biases of the last layers are raised, so that all values lie near `FAR`."""
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if name.endswith(("advantage.bias", "value.bias", "policy.bias", "outputs.bias", "body.2.bias")):
                parameter += FAR
    return net.eval().requires_grad_(False)


@contextmanager
def bf16() -> Iterator[None]:
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        yield


@pytest.mark.parametrize("name", NETS)
def test_values_near_a_hundred_do_not_tie(name: str) -> None:
    torch.manual_seed(0)
    made, through = NETS[name]()
    net, obs = far_away(made), torch.rand(ROWS, 6) * 2 - 1
    exact = through(net, obs)
    with bf16():
        out = through(net, obs)
    assert out.dtype == torch.float32
    # At 100 the steps of bf16 are 0.5 wide.
    assert (out.bfloat16().float() == out).float().mean() < 0.1
    assert (out - exact).abs().max() < 0.1


@pytest.mark.parametrize("copy_of", [bf16_copy, int8_copy])
@pytest.mark.parametrize("name", [name for name in NETS if name != "complete"])
def test_an_actor_of_few_bits_tells_values_apart(name: str, copy_of: Any) -> None:
    torch.manual_seed(0)
    made, through = NETS[name]()
    net, obs = far_away(made), torch.rand(ROWS, 6) * 2 - 1
    narrow, _ = copy_of(net)
    exact, out = through(net, obs), through(narrow, obs)
    assert not torch.equal(exact, out)
    assert (out.bfloat16().float() == out).float().mean() < 0.1
    if name == "dqn":
        agreement = (exact.argmax(1) == out.argmax(1)).float().mean().item()
        assert agreement > 0.95


@pytest.mark.parametrize("algo", ["dqn", "iqn", "ppo"])
def test_the_learner_trains_and_values_in_float32(algo: str) -> None:
    """Eager and as the function that is compiled."""
    torch.manual_seed(0)
    settings = find_algo(algo).Settings("test", algo=algo, net=NET)
    update = Update(make_algo(settings, Spaces(OBS, ACTIONS, 1)), LearnerConfig(), precision="bf16")
    net, obs = far_away(update.passes.net), torch.rand(ROWS, 6) * 2 - 1
    given = (obs,) if algo == "ppo" else (obs, None, torch.full((ROWS, 3), 0.5) if algo == "iqn" else None)
    with update.passes.cast():
        eager = net(*given)
    views = update.passes.by_views(dict(net.named_parameters()), *given)
    assert torch.equal(eager, views)
    assert eager.dtype == torch.float32
    assert (eager.bfloat16().float() == eager).float().mean() < 0.1
    assert np.isfinite(eager.numpy()).all()
