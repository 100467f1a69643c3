"""C51: the return as probabilities of evenly spaced values (atoms) between v_min and v_max."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from freewheel.algos.algo import Outcome, Params
from freewheel.algos.value_based import ValueBased, chosen
from freewheel.algos.value_range import RewardRange
from freewheel.contracts import Batch, Draws, Forward
from freewheel.nets.masks import MaskedNet, unless_forbidden

# Of the targets' probability: with less beyond an end of the support hardly a value is wrong.
MOST_BEYOND = 0.1


class C51Outcome(NamedTuple):
    """`Outcome`, and per row the probability of the target that lay below v_min and above v_max."""

    priorities: Tensor
    q: Tensor
    td: Tensor
    below: Tensor
    above: Tensor

    @classmethod
    def joined(cls, parts: Sequence[C51Outcome], shares: Sequence[float]) -> C51Outcome:
        return cls.in_order(parts)

    @classmethod
    def in_order(cls, updates: Sequence[C51Outcome]) -> C51Outcome:
        return cls(*(torch.cat(parts) for parts in zip(*updates, strict=True)))

    def metrics(self) -> dict[str, float]:
        ends = {"target_below": self.below.mean().item(), "target_above": self.above.mean().item()}
        return Outcome(*self[:3]).metrics() | ends


class Algorithm(ValueBased):
    name = "c51"
    num_values = "num_atoms"
    own_settings = ("q.num_atoms", "q.v_min", "q.v_max")
    outcome = C51Outcome

    def loss(
        self, forward: Forward, params: Params, target: Params, batch: Batch, draws: Draws
    ) -> tuple[Tensor, C51Outcome]:
        """Cross-entropy; the priority is the divergence (KL), which is 0 where the prediction is right."""
        ends = self.config.q.v_min, self.config.q.v_max
        with torch.no_grad():
            next_out, choose = self.next_outputs(forward, params, target, batch, draws)
            probs = chosen(next_out, self.q_values(choose).argmax(1)).softmax(1)
            positions = places(batch["reward"], batch["discount"], *ends, probs.shape[1])
            goal = project(probs, positions)
            beyond = [(probs * out).sum(1) for out in (positions < -0.5, positions > probs.shape[1] - 0.5)]
        out = forward(params, batch["obs"], draws.get("noise"), None)
        log_probs = chosen(out, batch["action"] - self.first_action).log_softmax(1)
        rows = -(goal * log_probs).sum(1)
        total = (batch["weight"] * rows).mean()
        divergence = (rows.detach() + torch.special.xlogy(goal, goal).sum(1)).clamp(min=0)
        td = (goal - log_probs.detach().exp()) @ atoms(*ends, goal.shape[1], goal.device)
        return total, C51Outcome(divergence, self.q_values(out.detach()), td, *beyond)

    def problems(self, metrics: Mapping[str, float], rewards: RewardRange) -> dict[str, str]:
        """Its values cannot leave the support; targets can."""
        q, found = self.config.q, {}
        least, most = rewards.values(q.gamma)
        for name, side, end, bound in (("v_min", "below", q.v_min, least), ("v_max", "above", q.v_max, most)):
            if (share := metrics.get(f"target_{side}", 0.0)) > MOST_BEYOND:
                found[name] = (
                    f"{100 * share:.0f} % of the targets' probability lies {side} q.{name}={end:g}, where returns cannot be told "
                    f"apart. Set q.{name} to the {'least' if side == 'below' else 'largest'} discounted return; the rewards so far "
                    f"with q.gamma={q.gamma} allow {bound:.4g}"
                )
        return found

    def q_values(self, out: Tensor) -> Tensor:
        """The mean of each action's distribution: logits [B, A, N] to [B, A]. A forbidden action has none."""
        means = out.softmax(-1) @ atoms(self.config.q.v_min, self.config.q.v_max, out.shape[-1], out.device)
        return unless_forbidden(out.amax(-1), means) if isinstance(self.net, MaskedNet) else means


def atoms(v_min: float, v_max: float, count: int, device: torch.device | None = None) -> Tensor:
    return torch.linspace(v_min, v_max, count, device=device)


def places(reward: Tensor, discount: Tensor, v_min: float, v_max: float, count: int) -> Tensor:
    """[B, N]: the places of reward + discount * atom among the atoms, which have 0 to N - 1."""
    moved = reward.unsqueeze(1) + discount.unsqueeze(1) * atoms(v_min, v_max, count, reward.device)
    return (moved - v_min) * ((count - 1) / (v_max - v_min))


def project(probs: Tensor, positions: Tensor) -> Tensor:
    """The probabilities [B, N] of values at these places, put back on the atoms.

    A value between two atoms is shared by distance, one on an atom goes there whole, one beyond the ends goes to the end. So
    atom j gets max(0, 1 - distance) of each: no index, no case for whole numbers, and the same sum in the same order each time.
    """
    count = probs.shape[1]
    positions = positions.clamp(0, count - 1)
    index = torch.arange(count, device=probs.device, dtype=probs.dtype)
    share = (1 - (positions.unsqueeze(1) - index.unsqueeze(1)).abs()).clamp(min=0)  # [B, to, from]
    return (share * probs.unsqueeze(1)).sum(2)
