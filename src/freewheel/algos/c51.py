"""C51: the return as chances of evenly spaced values (atoms) between v_min and v_max."""

from __future__ import annotations

import torch
from torch import Tensor

from freewheel.algos.algo import Outcome, Params, chosen, look_ahead, outcome
from freewheel.algos.value_based import ValueBased
from freewheel.contracts import Batch, Draws, Forward


def atoms(v_min: float, v_max: float, count: int, device: torch.device | None = None) -> Tensor:
    return torch.linspace(v_min, v_max, count, device=device)


def q_values(out: Tensor, *, v_min: float, v_max: float) -> Tensor:
    """The mean of each action's distribution: logits [B, A, N] to [B, A]."""
    return out.softmax(-1) @ atoms(v_min, v_max, out.shape[-1], out.device)


def project(chances: Tensor, reward: Tensor, discount: Tensor, v_min: float, v_max: float) -> Tensor:
    """The chances [B, N] of reward + discount * atom, put back on the atoms.

    A value between two atoms is shared by nearness, one on an atom goes there whole, one beyond the ends to the end. So
    atom j gets max(0, 1 - distance) of each: no index, no case for whole numbers, and the same sum in the same order each time.
    """
    count = chances.shape[1]
    moved = reward.unsqueeze(1) + discount.unsqueeze(1) * atoms(v_min, v_max, count, chances.device)
    places = ((moved - v_min) * ((count - 1) / (v_max - v_min))).clamp(0, count - 1)
    index = torch.arange(count, device=chances.device, dtype=chances.dtype)
    share = (1 - (places.unsqueeze(1) - index.unsqueeze(1)).abs()).clamp(min=0)  # [B, to, from]
    return (share * chances.unsqueeze(1)).sum(2)


def loss(
    forward: Forward,
    params: Params,
    target: Params,
    batch: Batch,
    draws: Draws,
    *,
    double: bool,
    v_min: float,
    v_max: float,
    first_action: int = 0,
) -> tuple[Tensor, Outcome]:
    """Cross-entropy; the priority is the divergence (KL), which is 0 where the prediction is right."""
    with torch.no_grad():
        later, choose = look_ahead(forward, params, target, batch, draws, double)
        chances = chosen(later, q_values(choose, v_min=v_min, v_max=v_max).argmax(1)).softmax(1)
        goal = project(chances, batch["reward"], batch["discount"], v_min, v_max)
    out = forward(params, batch["obs"], draws.get("noise"), None)
    log_chances = chosen(out, batch["action"] - first_action).log_softmax(1)
    rows = -(goal * log_chances).sum(1)
    total = (batch["weight"] * rows).mean()
    divergence = (rows.detach() + torch.special.xlogy(goal, goal).sum(1)).clamp(min=0)
    td = (goal - log_chances.detach().exp()) @ atoms(v_min, v_max, goal.shape[1], goal.device)
    return total, outcome(divergence, q_values(out.detach(), v_min=v_min, v_max=v_max), td)


class Algorithm(ValueBased):
    name = "c51"
    num_values = "num_atoms"
    own_settings = ("q.num_atoms", "q.v_min", "q.v_max")

    def loss(
        self, forward: Forward, params: Params, target: Params, batch: Batch, draws: Draws
    ) -> tuple[Tensor, Outcome]:
        q = self.config.q
        given = {"double": q.double, "v_min": q.v_min, "v_max": q.v_max, "first_action": self.first_action}
        return loss(forward, params, target, batch, draws, **given)

    def q_values(self, out: Tensor) -> Tensor:
        return q_values(out, v_min=self.config.q.v_min, v_max=self.config.q.v_max)
