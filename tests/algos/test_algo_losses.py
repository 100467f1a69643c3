"""Losses on real networks: weights, gradients, noise, one graph, and the draws that everything random comes from."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor
from torch.func import functional_call, grad_and_value

from freewheel.algos.make import make_algo
from freewheel.config import NetConfig, QConfig, find_algo
from freewheel.contracts import Forward, Spaces
from freewheel.errors import ConfigError
from freewheel.nets.value_net import QNet

SPACE = spaces.Box(-1, 1, (4,))
NET = NetConfig(hidden=(16, 12), norm="layer")
Q = QConfig(num_quantiles=5, num_atoms=7, num_taus=3, num_target_taus=4, num_act_taus=6, num_cosines=8)
ROWS = 6


class Case:
    """A network, its algorithm, and everything that one update is given."""

    def __init__(self, name: str, net: NetConfig = NET, **switches: Any) -> None:
        torch.manual_seed(0)
        settings = find_algo(name).Settings("test", algo=name, q=replace(Q, **switches), net=net)
        self.algo = make_algo(settings, Spaces(SPACE, spaces.Discrete(3, start=2), 1))
        self.net: QNet = self.algo.net
        self.params = {name: tensor.detach().clone() for name, tensor in self.net.named_parameters()}
        self.target = {name: tensor + 0.1 * torch.randn_like(tensor) for name, tensor in self.params.items()}
        self.batch: dict[str, Tensor] = {
            "obs": torch.randn(ROWS, 4),
            "next_obs": torch.randn(ROWS, 4),
            "action": torch.randint(2, 5, (ROWS,)),
            "reward": torch.randn(ROWS),
            "discount": torch.rand(ROWS) * (torch.arange(ROWS) % 3 > 0),
            "weight": torch.rand(ROWS) + 0.1,
        }
        self.draws = self.algo.draws(ROWS, torch.Generator().manual_seed(1))

    def forward(self, params: Any, obs: Any, noise: Tensor | None, taus: Tensor | None) -> Tensor:
        out: Tensor = functional_call(self.net, params, (obs, noise, taus))
        return out

    def loss(self, **changed: Any) -> tuple[Tensor, Any]:
        given = {"params": self.params, "target": self.target, "batch": self.batch, "draws": self.draws} | changed
        (whole,) = self.algo.losses
        return whole.function(self.forward, given["params"], given["target"], given["batch"], given["draws"], {})


# Rainbow's loss is C51's, which a test of its own says.
every = pytest.mark.parametrize("name", ["dqn", "qrdqn", "iqn", "c51"])


@every
def test_the_loss_is_the_weighted_mean_of_rows(name: str) -> None:
    case = Case(name)
    alone = []
    for i in range(ROWS):
        row = {key: value[i : i + 1] for key, value in case.batch.items()} | {"weight": torch.ones(1)}
        draws = {key: value if value.ndim == 1 else value[i : i + 1] for key, value in case.draws.items()}
        alone.append(case.loss(batch=row, draws=draws)[0].item())
    weights = case.batch["weight"].tolist()
    want = sum(w * x for w, x in zip(weights, alone, strict=True)) / ROWS
    assert case.loss()[0].item() == pytest.approx(want, rel=1e-4)


@every
def test_weights_scale_gradients_and_leave_priorities(name: str) -> None:
    case = Case(name)
    gradient = grad_and_value(lambda params, batch: case.loss(params=params, batch=batch), has_aux=True)
    once, (loss, outcome) = gradient(case.params, case.batch)
    twice, (double, same) = gradient(case.params, case.batch | {"weight": 2 * case.batch["weight"]})
    assert double.item() == pytest.approx(2 * loss.item(), rel=1e-5)
    assert all(torch.allclose(twice[key], 2 * once[key], rtol=1e-4, atol=1e-6) for key in once)
    assert torch.equal(outcome.priorities, same.priorities)
    assert outcome.priorities.shape == (ROWS,)
    assert (outcome.priorities >= 0).all()
    assert (outcome.q.shape, outcome.td.shape) == ((ROWS, 3), (ROWS,))
    ends = {"target_below", "target_above"} if name == "c51" else set()
    assert set(outcome.metrics()) == {"q_mean", "q_min", "q_max", "td_abs"} | ends


@every
def test_gradients_reach_every_parameter_and_no_target(name: str) -> None:
    for norm, double in itertools.product(("none", "layer", "batch"), (False, True)):
        case = Case(name, replace(NET, norm=norm), double=double, dueling=True, noisy=True)
        params = {key: value.requires_grad_() for key, value in case.params.items()}
        target = {key: value.requires_grad_() for key, value in case.target.items()}
        loss, outcome = case.loss(params=params, target=target)
        loss.backward()
        # A bias before a batch norm is taken off again with the mean.
        hidden = [key for key in params if key.startswith(("body.layers.linear", "head.hidden"))]
        unused = {key for key in hidden if "linear" in key and "bias" in key} if norm == "batch" else set()
        assert {key for key, value in params.items() if value.grad is None or value.grad.abs().max() < 1e-6} == unused
        assert all(value.grad is None for value in target.values())
        assert not any(value.requires_grad for value in outcome)


@every
def test_ended_episodes_do_not_see_what_comes_after(name: str) -> None:
    case = Case(name)
    ended = case.batch | {"discount": torch.zeros(ROWS)}
    elsewhere = ended | {"next_obs": torch.randn(ROWS, 4)}
    assert torch.allclose(case.loss(batch=ended)[0], case.loss(batch=elsewhere)[0])
    going_on = {**elsewhere, "discount": torch.full((ROWS,), 0.9)}
    assert not torch.allclose(case.loss(batch=elsewhere)[0], case.loss(batch=going_on)[0])


@every
def test_double_lets_the_online_network_choose(name: str) -> None:
    asked: list[tuple[str, bool]] = []

    def spied(case: Case) -> Forward:
        def forward(params: Any, obs: Any, noise: Tensor | None, taus: Tensor | None) -> Tensor:
            who = "online" if params is case.params else "target"
            asked.append((who, obs is case.batch["next_obs"]))
            assert torch.is_grad_enabled() == (obs is case.batch["obs"])
            return case.forward(params, obs, noise, taus)

        return forward

    for double in (False, True):
        case = Case(name, double=double)
        asked.clear()
        case.algo.loss(spied(case), case.params, case.target, case.batch, case.draws)
        assert asked.count(("online", True)) == double
        chooses_apart = name == "iqn" and not double  # by other fractions than it values by
        assert asked.count(("target", True)) == 1 + chooses_apart
        assert asked.count(("online", False)) == 1
        assert len(asked) == 2 + (double or chooses_apart)


@every
def test_noise_of_each_pass_is_its_own(name: str) -> None:
    case = Case(name, double=True, dueling=True, noisy=True)
    noises = {key: value for key, value in case.draws.items() if "noise" in key}
    assert set(noises) == {"noise", "target_noise", "choose_noise"}
    assert len({tuple(value.tolist()) for value in noises.values()}) == 3
    before = case.loss()[0].item()
    for key in ("noise", "target_noise"):
        assert case.loss(draws=case.draws | {key: torch.randn_like(noises[key])})[0].item() != before
    single = Case(name, double=False, noisy=True).draws
    assert "choose_noise" not in single
    assert not any("noise" in key for key in Case(name).draws)


@every
@pytest.mark.parametrize("on", [False, True])
def test_the_whole_gradient_is_one_graph(name: str, on: bool) -> None:
    case = Case(name, double=on, dueling=on, noisy=on)
    step: Callable[..., Any] = grad_and_value(
        lambda params, target, batch, draws: case.loss(params=params, target=target, batch=batch, draws=draws),
        has_aux=True,
    )
    given = (case.params, case.target, case.batch, case.draws)
    torch._dynamo.reset()
    gradient, (loss, outcome) = torch.compile(step, fullgraph=True, backend="eager")(*given)
    want, (want_loss, want_outcome) = step(*given)
    torch._dynamo.reset()
    assert torch.allclose(loss, want_loss)
    assert torch.allclose(outcome.priorities, want_outcome.priorities)
    assert all(torch.allclose(gradient[key], want[key], atol=1e-6) for key in want)


def test_batch_norm_moves_with_the_trained_rows_under_grad() -> None:
    case = Case("dqn", replace(NET, norm="batch"))
    case.net.eval()
    buffers = {key: value.clone().float() for key, value in case.net.named_buffers()}

    def forward(params: Any, obs: Any, noise: Tensor | None, taus: Tensor | None) -> Tensor:
        case.net.train(torch.is_grad_enabled())
        return case.forward(params, obs, noise, taus)

    def loss(params: dict[str, Tensor], moving: dict[str, Tensor]) -> tuple[Tensor, Any]:
        return case.algo.loss(forward, params | moving, case.target | moving, case.batch, case.draws)

    moved = {key: value.clone() for key, value in buffers.items()}
    grad_and_value(loss, has_aux=True)(case.params, moved)
    features = case.net.body.layers.linear0(case.batch["obs"])
    assert torch.allclose(moved["body.layers.norm0.running_mean"], 0.1 * features.mean(0), atol=1e-5)
    assert moved["body.layers.norm0.num_batches_tracked"].item() == 1


@every
def test_draws_follow_the_generator(name: str) -> None:
    case = Case(name, noisy=True)
    again, other = (case.algo.draws(ROWS, torch.Generator().manual_seed(seed)) for seed in (1, 2))
    assert all(torch.equal(again[key], value) for key, value in case.draws.items())
    assert not any(torch.equal(other[key], value) for key, value in case.draws.items())
    shapes = {key: tuple(value.shape) for key, value in case.draws.items() if "taus" in key}
    assert shapes == ({"taus": (ROWS, 3), "target_taus": (ROWS, 4)} if name == "iqn" else {})


@every
def test_acting(name: str) -> None:
    case = Case(name, noisy=True)
    assert case.algo.first_action == 2
    policy = case.algo.policy(case.net.eval(), lambda stream: 3, range(ROWS), ROWS)
    obs = {"obs": case.batch["obs"].numpy()}
    greedy = policy.values(obs)
    assert greedy.shape == (ROWS, 3)
    assert torch.equal(greedy, policy.values(obs))
    assert not torch.equal(greedy, policy.values(obs, np.arange(ROWS)))
    assert case.algo.num_act_taus == (6 if name == "iqn" else 0)
    if name == "iqn":
        evenly = torch.tensor([(i + 0.5) / 6 for i in range(6)]).expand(ROWS, -1)
        with torch.no_grad():
            assert torch.allclose(greedy, case.algo.q_values(case.net(case.batch["obs"], None, evenly)))
    assert Case(name).algo.num_act_noise == 0


def test_rainbow_is_the_loss_of_c51() -> None:
    rainbow, c51 = Case("rainbow", noisy=True), Case("c51", noisy=True)
    assert rainbow.loss()[0].item() == c51.loss()[0].item()
    assert type(rainbow.algo).loss is type(c51.algo).loss
    assert rainbow.draws.keys() == c51.draws.keys()


def test_settings_reach_the_loss() -> None:
    assert Case("dqn", loss="mse").loss()[0].item() != Case("dqn", loss="huber", huber=0.5).loss()[0].item()
    # Errors are small here: a Huber loss that never turns straight is the mean square.
    assert Case("dqn", loss="mse").loss()[0].item() == pytest.approx(Case("dqn", huber=1e3).loss()[0].item())
    assert Case("c51", v_max=20.0).loss()[0].item() != Case("c51").loss()[0].item()


def test_an_unknown_algorithm_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"algo='dqnn'.*qrdqn"):
        find_algo("dqnn")
