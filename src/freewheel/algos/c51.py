"""C51: the return as probabilities of evenly spaced values (atoms) between v_min and v_max."""

from __future__ import annotations

import torch
from torch import Tensor

from freewheel.algos.algo import Outcome, Params
from freewheel.algos.value_based import ValueBased, chosen
from freewheel.contracts import Batch, Draws, Forward
from freewheel.nets.masks import MaskedNet, unless_forbidden


class Algorithm(ValueBased):
    name = "c51"
    num_values = "num_atoms"
    own_settings = ("q.num_atoms", "q.v_min", "q.v_max")

    def loss(
        self, forward: Forward, params: Params, target: Params, batch: Batch, draws: Draws
    ) -> tuple[Tensor, Outcome]:
        """Cross-entropy; the priority is the divergence (KL), which is 0 where the prediction is right."""
        ends = self.config.q.v_min, self.config.q.v_max
        with torch.no_grad():
            next_out, choose = self.next_outputs(forward, params, target, batch, draws)
            probs = chosen(next_out, self.q_values(choose).argmax(1)).softmax(1)
            goal = project(probs, batch["reward"], batch["discount"], *ends)
        out = forward(params, batch["obs"], draws.get("noise"), None)
        log_probs = chosen(out, batch["action"] - self.first_action).log_softmax(1)
        rows = -(goal * log_probs).sum(1)
        total = (batch["weight"] * rows).mean()
        divergence = (rows.detach() + torch.special.xlogy(goal, goal).sum(1)).clamp(min=0)
        td = (goal - log_probs.detach().exp()) @ atoms(*ends, goal.shape[1], goal.device)
        return total, Outcome(divergence, self.q_values(out.detach()), td)

    def q_values(self, out: Tensor) -> Tensor:
        """The mean of each action's distribution: logits [B, A, N] to [B, A]. A forbidden action has none."""
        means = out.softmax(-1) @ atoms(self.config.q.v_min, self.config.q.v_max, out.shape[-1], out.device)
        return unless_forbidden(out.amax(-1), means) if isinstance(self.net, MaskedNet) else means


def atoms(v_min: float, v_max: float, count: int, device: torch.device | None = None) -> Tensor:
    return torch.linspace(v_min, v_max, count, device=device)


def project(probs: Tensor, reward: Tensor, discount: Tensor, v_min: float, v_max: float) -> Tensor:
    """The probabilities [B, N] of reward + discount * atom, put back on the atoms.

    A value between two atoms is shared by distance, one on an atom goes there whole, one beyond the ends goes to the end. So
    atom j gets max(0, 1 - distance) of each: no index, no case for whole numbers, and the same sum in the same order each time.
    """
    count = probs.shape[1]
    moved = reward.unsqueeze(1) + discount.unsqueeze(1) * atoms(v_min, v_max, count, probs.device)
    positions = ((moved - v_min) * ((count - 1) / (v_max - v_min))).clamp(0, count - 1)
    index = torch.arange(count, device=probs.device, dtype=probs.dtype)
    share = (1 - (positions.unsqueeze(1) - index.unsqueeze(1)).abs()).clamp(min=0)  # [B, to, from]
    return (share * probs.unsqueeze(1)).sum(2)
