"""QR-DQN: quantiles of the return at fixed fractions instead of its mean."""

from __future__ import annotations

import torch
from torch import Tensor

from freewheel.algos.algo import Outcome, Params
from freewheel.algos.value_based import ValueBased, quantile_goal, quantile_loss
from freewheel.contracts import Batch, Draws, Forward
from freewheel.nets.value_net import midpoints


class Algorithm(ValueBased):
    name = "qrdqn"
    num_values = "num_quantiles"
    own_settings = ("q.num_quantiles", "q.huber")

    def loss(
        self, forward: Forward, params: Params, target: Params, batch: Batch, draws: Draws
    ) -> tuple[Tensor, Outcome]:
        with torch.no_grad():
            next_out, choose = self.next_outputs(forward, params, target, batch, draws)
            goal = quantile_goal(batch, next_out, self.q_values(choose).argmax(1))
        out = forward(params, batch["obs"], draws.get("noise"), None)
        taus = midpoints(out.shape[-1], out.device)
        return quantile_loss(out, goal, taus, batch, self.config.q.huber, self.first_action)
