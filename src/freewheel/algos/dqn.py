"""DQN: the value of an action is its reward and the best value after it. With double, the online network chooses the best action."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from freewheel.algos.algo import Outcome, Params
from freewheel.algos.value_based import ValueBased, chosen
from freewheel.contracts import Batch, Draws, Forward


class Algorithm(ValueBased):
    name = "dqn"
    own_settings = ("q.loss", "q.huber")

    def loss(
        self, forward: Forward, params: Params, target: Params, batch: Batch, draws: Draws
    ) -> tuple[Tensor, Outcome]:
        """Huber loss, or half the squared error."""
        q = self.config.q
        with torch.no_grad():
            goal = targets(
                batch["reward"], batch["discount"], *self.next_outputs(forward, params, target, batch, draws)
            )
        out = forward(params, batch["obs"], draws.get("noise"), None)
        value = chosen(out, batch["action"] - self.first_action)
        # Half the square in both cases: a learning rate then means the same.
        if q.loss == "mse":
            rows = 0.5 * (value - goal).square()
        else:
            rows = F.huber_loss(value, goal, reduction="none", delta=q.huber)
        total = (batch["weight"] * rows).mean()
        td = (goal - value).detach()
        return total, Outcome(td.abs(), out.detach(), td)


def targets(reward: Tensor, discount: Tensor, next_q: Tensor, choose_q: Tensor) -> Tensor:
    """[B]: the (n-step) reward plus the discounted value, by next_q [B, A], of the action that is best by choose_q [B, A].

    `discount` is gamma^m of the m steps in `reward`, and 0 where the episode terminated.
    """
    return reward + discount * chosen(next_q, choose_q.argmax(1))
