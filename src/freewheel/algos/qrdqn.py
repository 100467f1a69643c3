"""QR-DQN: quantiles of the return at fixed fractions, in place of its mean."""

from __future__ import annotations

import torch
from torch import Tensor

from freewheel.algos.algo import Outcome, Params, chosen, look_ahead, outcome
from freewheel.algos.value_based import ValueBased
from freewheel.contracts import Batch, Draws, Forward
from freewheel.nets.heads import midpoints


def q_values(out: Tensor) -> Tensor:
    """The mean over the quantiles: [B, A, N] to [B, A]."""
    return out.mean(-1)


def quantile_huber(online: Tensor, goal: Tensor, taus: Tensor, kappa: float) -> Tensor:
    """[B]: online quantiles [B, N], whose fractions are taus [B, N] or [N], against samples of the target [B, M].

    Each pair's error u weighs tau if the target lies above and 1 - tau below; sum over the online, mean over the target ones.
    """
    u = goal.unsqueeze(1) - online.unsqueeze(2)
    far = u.abs()
    huber = torch.where(far <= kappa, 0.5 * u.square(), kappa * (far - 0.5 * kappa))
    side = (taus.unsqueeze(-1) - (u.detach() < 0).float()).abs()
    return (side * huber / kappa).mean(2).sum(1)


def loss(
    forward: Forward,
    params: Params,
    target: Params,
    batch: Batch,
    draws: Draws,
    *,
    double: bool,
    huber: float,
    first_action: int = 0,
) -> tuple[Tensor, Outcome]:
    with torch.no_grad():
        later, choose = look_ahead(forward, params, target, batch, draws, double)
        goal = goal_of(batch, later, best_of(choose))
    out = forward(params, batch["obs"], draws.get("noise"), None)
    taus = midpoints(out.shape[-1], out.device)
    return loss_of(out, goal, taus, batch, huber, first_action)


def best_of(choose: Tensor) -> Tensor:
    return q_values(choose).argmax(1)


def goal_of(batch: Batch, later: Tensor, best: Tensor) -> Tensor:
    """[B, M]: each quantile of the next state's best action, discounted and with the reward added."""
    quantiles = chosen(later, best)
    reward: Tensor = batch["reward"]
    discount: Tensor = batch["discount"]
    return reward.unsqueeze(1) + discount.unsqueeze(1) * quantiles


def loss_of(
    out: Tensor, goal: Tensor, taus: Tensor, batch: Batch, huber: float, first_action: int
) -> tuple[Tensor, Outcome]:
    online = chosen(out, batch["action"] - first_action)
    rows = quantile_huber(online, goal, taus, huber)
    total = (batch["weight"] * rows).mean()
    # The error of the means, which is DQN's: a wide distribution is no reason to see a row more often.
    td = goal.mean(1) - online.mean(1)
    return total, outcome(td.abs(), q_values(out), td)


class Algorithm(ValueBased):
    name = "qrdqn"
    num_values = "num_quantiles"
    own_settings = ("q.num_quantiles", "q.huber")

    def loss(
        self, forward: Forward, params: Params, target: Params, batch: Batch, draws: Draws
    ) -> tuple[Tensor, Outcome]:
        q = self.config.q
        given = {"double": q.double, "huber": q.huber, "first_action": self.first_action}
        return loss(forward, params, target, batch, draws, **given)

    def q_values(self, out: Tensor) -> Tensor:
        return q_values(out)
