"""PPO: make good actions likelier, but no further from the policy that took them than the clip allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from freewheel.algos.distributions import Actions
from freewheel.config import PPOConfig

# What an update tells beside its loss, in this order.
FIGURES = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")
STD_EPS = 1e-8


@dataclass(frozen=True)
class PPO:
    """The loss of one minibatch, with the switches of a run."""

    config: PPOConfig
    actions: Actions

    def loss(self, out: Tensor, batch: Mapping[str, Any], clip: Tensor) -> tuple[Tensor, Tensor]:
        """`out` [B, outputs + 1] is what the network gives for the rows' observations, the value last.

        `batch` has action, log_prob and value as they were when the rows were collected, advantage and goal (the return that
        the value should have said). Gives the loss and the figures.
        """
        config = self.config
        log_prob, entropy = self.actions.log_prob(out[:, :-1], batch["action"])
        advantage: Tensor = batch["advantage"]
        if config.normalize_advantage:
            advantage = (advantage - advantage.mean()) / (advantage.std() + STD_EPS)
        moved = log_prob - batch["log_prob"]
        ratio = moved.exp()
        bounded = torch.minimum(torch.maximum(ratio, 1 - clip), 1 + clip)
        policy_loss = -torch.minimum(advantage * ratio, advantage * bounded).mean()
        value_loss = self._value_loss(out[:, -1], batch)
        spread = entropy.mean()
        loss = policy_loss + config.value_weight * value_loss - config.entropy_weight * spread
        with torch.no_grad():
            # (r - 1) - log r: never negative, and of little variance where r is near 1.
            kl = ((ratio - 1) - moved).mean()
            clipped = ((ratio - 1).abs() > clip).float().mean()
            figures = torch.stack([policy_loss.detach(), value_loss.detach(), spread.detach(), kl, clipped])
        return loss, figures

    def _value_loss(self, value: Tensor, batch: Mapping[str, Any]) -> Tensor:
        goal: Tensor = batch["goal"]
        error = (value - goal).square()
        bound = self.config.value_clip
        if bound > 0:
            near = batch["value"] + (value - batch["value"]).clamp(-bound, bound)
            error = torch.maximum(error, (near - goal).square())
        return error.mean()
