"""DQN: the value of an action is its reward and the best value after it. With double, the online network says which is best."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from freewheel.algos.algo import Outcome, Params, chosen, look_ahead, outcome
from freewheel.algos.value_based import ValueBased
from freewheel.contracts import Batch, Draws, Forward


def q_values(out: Tensor) -> Tensor:
    return out


def targets(reward: Tensor, discount: Tensor, next_q: Tensor, choose_q: Tensor) -> Tensor:
    """[B]: the (n-step) reward and the discounted value, by next_q [B, A], of the action that is best by choose_q [B, A].

    `discount` is gamma^m of the m steps in `reward`, and 0 where the episode terminated.
    """
    return reward + discount * chosen(next_q, choose_q.argmax(1))


def loss(
    forward: Forward,
    params: Params,
    target: Params,
    batch: Batch,
    draws: Draws,
    *,
    double: bool,
    huber: float | None,
    first_action: int = 0,
) -> tuple[Tensor, Outcome]:
    """Squared error up to `huber` away and linear beyond; None: squared everywhere."""
    with torch.no_grad():
        next_q, choose_q = look_ahead(forward, params, target, batch, draws, double)
        goal = targets(batch["reward"], batch["discount"], next_q, choose_q)
    q = forward(params, batch["obs"], draws.get("noise"), None)
    value = chosen(q, batch["action"] - first_action)
    # Half the square in both cases: one learning rate then means the same.
    rows = F.huber_loss(value, goal, reduction="none", delta=huber) if huber else 0.5 * (value - goal).square()
    total = (batch["weight"] * rows).mean()
    td = goal - value
    return total, outcome(td.abs(), q, td)


class Algorithm(ValueBased):
    name = "dqn"
    own_settings = ("q.loss", "q.huber")

    def loss(
        self, forward: Forward, params: Params, target: Params, batch: Batch, draws: Draws
    ) -> tuple[Tensor, Outcome]:
        q = self.config.q
        huber = None if q.loss == "mse" else q.huber
        return loss(forward, params, target, batch, draws, double=q.double, huber=huber, first_action=self.first_action)
