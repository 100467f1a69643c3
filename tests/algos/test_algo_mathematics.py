"""Targets, Huber, quantile Huber and the projection of C51: by hand, and against loops."""

from __future__ import annotations

import math
from typing import Any

import naive_losses as naive
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from freewheel.algos import c51, dqn
from freewheel.algos.make import make_algo
from freewheel.algos.value_based import chosen, quantile_huber
from freewheel.config import QConfig, find_algo
from freewheel.contracts import Spaces
from freewheel.nets.value_net import midpoints

seeds = st.integers(0, 2**31 - 1)


def table(q: list[Any]) -> Tensor:
    return torch.tensor(q, dtype=torch.float32)


def forward(params: Any, obs: Tensor, noise: Tensor | None, taus: Tensor | None) -> Tensor:
    """A network that is a table: observation i gives row i."""
    out: Tensor = params["table"][obs]
    return out


def projected(probs: Tensor, reward: Tensor, discount: Tensor, v_min: float, v_max: float) -> Tensor:
    return c51.project(probs, c51.places(reward, discount, v_min, v_max, probs.shape[1]))


def batch_of(reward: list[float], discount: list[float], weight: list[float], action: list[int]) -> dict[str, Tensor]:
    rows = torch.arange(len(reward))
    return {
        "obs": rows,
        "next_obs": rows,
        "action": torch.tensor(action),
        "reward": table(reward),
        "discount": table(discount),
        "weight": table(weight),
    }


def algo(name: str, first_action: int = 0, **q: Any) -> Any:
    settings = find_algo(name).Settings("test", algo=name, q=QConfig(**q))
    return make_algo(settings, Spaces(spaces.Box(-1, 1, (1,)), spaces.Discrete(2, start=first_action), 1))


def test_the_values_of_actions_taken() -> None:
    assert chosen(table([[1, 2], [3, 4]]), torch.tensor([1, 0])).tolist() == [2, 3]
    deep = torch.arange(12).reshape(2, 3, 2)
    assert chosen(deep, torch.tensor([2, 0], dtype=torch.int32)).tolist() == [[4, 5], [6, 7]]


def test_targets_by_hand() -> None:
    # Row 0: three steps (1 + 0.9 * 2 + 0.81 * 4 = 6.04), then 0.9^3 of the best; row 1 terminated: the reward alone.
    reward, discount = table([6.04, -1.0]), table([0.729, 0.0])
    valued, choosing = table([[10, 20], [99, 99]]), table([[5, 1], [0, 9]])
    assert dqn.targets(reward, discount, valued, valued).tolist() == pytest.approx([6.04 + 0.729 * 20, -1.0])
    assert dqn.targets(reward, discount, valued, choosing).tolist() == pytest.approx([6.04 + 0.729 * 10, -1.0])


@given(seed=seeds, batch=st.integers(1, 5), actions=st.integers(1, 4))
@settings(max_examples=50, deadline=None)
def test_targets_are_what_a_loop_gives(seed: int, batch: int, actions: int) -> None:
    g = torch.Generator().manual_seed(seed)
    reward, discount = torch.randn(batch, generator=g), torch.rand(batch, generator=g)
    discount *= (torch.rand(batch, generator=g) < 0.7).float()
    valued, choosing = torch.randn(batch, actions, generator=g), torch.randn(batch, actions, generator=g)
    got = dqn.targets(reward, discount, valued, choosing).tolist()
    rows = zip(reward.tolist(), discount.tolist(), valued.tolist(), choosing.tolist(), strict=True)
    assert got == pytest.approx([naive.target(*row) for row in rows], abs=1e-5)


@pytest.mark.parametrize(
    ("double", "huber", "want"),
    [
        # td: 1 + 0.5 * 8 - 2 = 3 by the target's best; 1 + 0.5 * 4 - 2 = 1 by the online network's. Row 1 ended: -1 - 4 = -5.
        (False, 1.0, (2 * (3 - 0.5) + 0.5 * (5 - 0.5)) / 2),
        (True, 1.0, (2 * 0.5 + 0.5 * (5 - 0.5)) / 2),
        (True, 2.0, (2 * 0.5 + 0.5 * 2 * (5 - 1)) / 2),
        (False, None, (2 * 4.5 + 0.5 * 12.5) / 2),
    ],
)
def test_dqn_by_hand(double: bool, huber: float | None, want: float) -> None:
    online, target = {"table": table([[2, 1], [3, 4]])}, {"table": table([[4, 8], [7, 7]])}
    batch = batch_of([1.0, -1.0], [0.5, 0.0], [2.0, 0.5], [10, 11])
    given = {"loss": "mse"} if huber is None else {"huber": huber}
    loss, outcome = algo("dqn", 10, double=double, **given).loss(forward, online, target, batch, {})
    assert loss.item() == pytest.approx(want)
    assert outcome.priorities.tolist() == pytest.approx([1.0 if double else 3.0, 5.0])
    td_abs = 3.0 if double else 4.0
    assert outcome.metrics() == pytest.approx({"q_mean": 2.5, "q_min": 1, "q_max": 4, "td_abs": td_abs})


def test_quantile_huber_by_hand() -> None:
    # u = 3 and -0.5 for tau 0.25: 0.25 * 2.5 and 0.75 * 0.125, their mean.
    got = quantile_huber(table([[1.0]]), table([[4.0, 0.5]]), table([0.25]), 1.0)
    assert got.item() == pytest.approx((0.25 * 2.5 + 0.75 * 0.125) / 2)


@given(
    seed=seeds, n=st.integers(1, 5), m=st.integers(1, 5), kappa=st.sampled_from([0.1, 1.0, 3.0]), fixed=st.booleans()
)
@settings(max_examples=60, deadline=None)
def test_quantile_huber_is_the_triple_loop(seed: int, n: int, m: int, kappa: float, fixed: bool) -> None:
    g = torch.Generator().manual_seed(seed)
    online, goal = 3 * torch.randn(3, n, generator=g), 3 * torch.randn(3, m, generator=g)
    taus = midpoints(n) if fixed else torch.rand(3, n, generator=g)
    each = taus.expand(3, n).tolist()
    want = [naive.quantile_huber(*rows, kappa) for rows in zip(online.tolist(), goal.tolist(), each, strict=True)]
    assert quantile_huber(online, goal, taus, kappa).tolist() == pytest.approx(want, rel=1e-4, abs=1e-5)


def test_more_quantiles_give_no_larger_loss() -> None:
    """So learner.clip_norm means the same for any number of them, and the same as in DQN."""
    online, goal, taus = torch.randn(3, 5), torch.randn(3, 4), torch.rand(3, 5)
    once = quantile_huber(online, goal, taus, 1.0)
    assert torch.allclose(quantile_huber(online.repeat(1, 10), goal, taus.repeat(1, 10), 1.0), once)
    far = quantile_huber(torch.zeros(1, 50), torch.full((1, 50), 1e3), midpoints(50), 1.0)
    assert far.item() == pytest.approx(0.5 * (1e3 - 0.5))  # half of Huber's: tau on the one side, 1 - tau on the other


def test_quantile_huber_is_least_at_the_quantiles() -> None:
    samples = torch.linspace(0, 1, 1001).unsqueeze(0)
    taus = midpoints(4)
    right, off = table([[0.125, 0.375, 0.625, 0.875]]), table([[0.2, 0.375, 0.625, 0.8]])
    least = quantile_huber(right, samples, taus, 1e-3)
    assert least.item() < quantile_huber(off, samples, taus, 1e-3).item()


def test_midpoints() -> None:
    assert midpoints(4).tolist() == [0.125, 0.375, 0.625, 0.875]


@pytest.mark.parametrize("double", [False, True])
def test_qrdqn_takes_the_quantiles_of_the_best_mean(double: bool) -> None:
    # Means 2 and 3 online, 6 and 5 by the target: single takes action 0 of the target, double action 1.
    online, target = {"table": table([[[1, 3], [2, 4]]])}, {"table": table([[[4, 8], [0, 10]]])}
    batch = batch_of([1.0], [0.5], [1.0], [0])
    goal = [1.0, 6.0] if double else [3.0, 5.0]
    loss, outcome = algo("qrdqn", double=double, huber=1.0).loss(forward, online, target, batch, {})
    assert loss.item() == pytest.approx(naive.quantile_huber([1.0, 3.0], goal, [0.25, 0.75], 1.0))
    assert outcome.priorities.item() == pytest.approx(abs(sum(goal) / 2 - 2.0))
    assert outcome.q.tolist() == [[2.0, 3.0]]


@pytest.mark.parametrize("double", [False, True])
def test_iqn_uses_each_fraction_in_its_place(double: bool) -> None:
    def at(params: Any, obs: Tensor, noise: Tensor | None, taus: Tensor | None) -> Tensor:
        assert taus is not None  # action 0's quantile is base + tau, action 1's is base + slope * tau
        values: Tensor = params["base"] + torch.stack([taus, params["slope"] * taus], 1)
        return values

    online = {"base": table([0.0]), "slope": table([2.0])}
    target = {"base": table([5.0]), "slope": table([-1.0])}
    draws = {"taus": table([[0.1, 0.9]]), "target_taus": table([[0.2, 0.4, 0.6]])}
    slope = -1.0 if double else 1.0  # online prefers action 1, the target action 0
    goal = [1 + 0.5 * (5 + slope * tau) for tau in (0.2, 0.4, 0.6)]
    batch = batch_of([1.0], [0.5], [3.0], [1])
    chooses_by_one = algo("iqn", double=double, huber=1.0, num_act_taus=1)
    loss, outcome = chooses_by_one.loss(at, online, target, batch, draws)
    assert loss.item() == pytest.approx(3 * naive.quantile_huber([0.2, 1.8], goal, [0.1, 0.9], 1.0), rel=1e-5)
    assert outcome.priorities.item() == pytest.approx(abs(sum(goal) / 3 - 1.0), rel=1e-5)


def test_projection_by_hand() -> None:
    for reward, discount, want in [
        (0.0, 1.0, [0.1, 0.2, 0.3, 0.4]),  # every value on an atom: nothing is lost or moved
        (1.0, 1.0, [0.0, 0.1, 0.2, 0.7]),  # one atom up; what passes the end stays there
        (-9.0, 1.0, [1.0, 0.0, 0.0, 0.0]),
        (9.0, 0.0, [0.0, 0.0, 0.0, 1.0]),
        (1.0, 0.0, [0.0, 1.0, 0.0, 0.0]),  # terminated, on an atom
        (1.25, 0.0, [0.0, 0.75, 0.25, 0.0]),
        (0.5, 1.0, [0.05, 0.15, 0.25, 0.55]),
        (0.0, 0.5, [0.1 + 0.1, 0.1 + 0.3 + 0.2, 0.2, 0.0]),  # 0, 0.5, 1, 1.5
    ]:
        got = projected(table([[0.1, 0.2, 0.3, 0.4]]), table([reward]), table([discount]), 0.0, 3.0)
        assert got[0].tolist() == pytest.approx(want, abs=1e-6), (reward, discount)


@given(
    seed=seeds,
    count=st.integers(2, 51),
    ends=st.sampled_from([(-10.0, 10.0), (0.0, 1.0), (-1.0, 300.0), (-0.3, 0.7)]),
    scale=st.sampled_from([0.0, 0.1, 1.0, 100.0]),
    whole=st.booleans(),
)
@settings(max_examples=80, deadline=None)
def test_projection_is_the_loop_and_keeps_all_chances(
    seed: int, count: int, ends: tuple[float, float], scale: float, whole: bool
) -> None:
    g = torch.Generator().manual_seed(seed)
    chances = (4 * torch.randn(4, count, generator=g)).softmax(1)
    reward = scale * (ends[1] - ends[0]) * torch.randn(4, generator=g)
    if whole:  # a whole number of atoms up or down: every value falls on an atom
        reward = (reward * (count - 1) / (ends[1] - ends[0])).round() * (ends[1] - ends[0]) / (count - 1)
    discount = table([1.0, 0.99, 0.5, 0.0])
    got = projected(chances, reward, discount, *ends)
    rows = zip(chances.tolist(), reward.tolist(), discount.tolist(), strict=True)
    for line, row in zip(got.tolist(), rows, strict=True):
        assert line == pytest.approx(naive.project(*row, *ends), abs=2e-4)
        assert sum(line) == pytest.approx(1, abs=1e-5)
        assert min(line) >= 0


@given(seed=seeds, count=st.integers(3, 51))
@settings(max_examples=40, deadline=None)
def test_projection_keeps_the_mean_inside_the_ends(seed: int, count: int) -> None:
    g = torch.Generator().manual_seed(seed)
    chances = torch.randn(4, count, generator=g).softmax(1)
    discount = 0.5 * torch.rand(4, generator=g)
    reward = torch.rand(4, generator=g) - 0.5  # |reward| + discount * 1 <= 1: nothing is cut
    z = c51.atoms(-1.0, 1.0, count)
    got = projected(chances, reward, discount, -1.0, 1.0) @ z
    assert torch.allclose(got, reward + discount * (chances @ z), atol=1e-5)


def test_c51_by_hand() -> None:
    # Chances of atoms 0, 1, 2. Online means 0.5 and 1 choose action 1; the target's means 1.5 and 0.5 choose action 0.
    online = {"table": table([[[0.5, 0.5, 1e-9], [0.25, 0.5, 0.25]]]).log()}
    target = {"table": table([[[1e-9, 0.5, 0.5], [0.5, 0.5, 1e-9]]]).log()}
    batch = batch_of([1.0], [1.0], [2.0], [1])
    for double, goal in ((False, [0.0, 0.0, 1.0]), (True, [0.0, 0.5, 0.5])):
        loss, outcome = algo("c51", double=double, v_min=0.0, v_max=2.0).loss(forward, online, target, batch, {})
        predicted = [0.25, 0.5, 0.25]
        cross = -sum(p * math.log(x) for p, x in zip(goal, predicted, strict=True))
        entropy = -sum(p * math.log(p) for p in goal if p > 0)
        assert loss.item() == pytest.approx(2 * cross, rel=1e-5)
        assert outcome.priorities.item() == pytest.approx(cross - entropy, rel=1e-5)
        assert outcome.td.item() == pytest.approx(goal[1] + 2 * goal[2] - 1.0, rel=1e-5)
        assert outcome.q[0].tolist() == pytest.approx([0.5, 1.0])


def test_a_right_prediction_of_chances_has_no_priority() -> None:
    same = {"table": torch.randn(1, 1, 5, generator=torch.Generator().manual_seed(0))}
    batch = batch_of([0.0], [1.0], [1.0], [0])
    _, outcome = algo("c51", double=False, v_min=-1.0, v_max=1.0).loss(forward, same, same, batch, {})
    assert 0 <= outcome.priorities.item() < 1e-6
