"""What an algorithm is: a loss, the values to act by, and everything random that the two are given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

Params = Any  # whatever `forward` takes: views of a vector by name, or a network whose tensors are such views
Batch = Mapping[str, Any]  # obs and next_obs may be dicts of tensors
Draws = Mapping[str, Tensor]
Forward = Callable[[Params, Any, Tensor | None, Tensor | None], Tensor]


class Outcome(NamedTuple):
    """What an update tells beside its loss, one line per row: priorities [B] >= 0, action values [B, A], TD errors [B]."""

    priorities: Tensor
    q: Tensor
    td: Tensor

    def figures(self) -> dict[str, float]:
        """For the log; made when they are asked for, since most updates are not logged."""
        q, td = self.q, self.td
        return {
            "q_mean": q.mean().item(),
            "q_min": q.min().item(),
            "q_max": q.max().item(),
            "td_abs": td.abs().mean().item(),
        }


Loss = Callable[[Forward, Params, Params, Batch, Draws], tuple[Tensor, Outcome]]
Later = Callable[[Forward, Params, Batch, Draws], dict[str, Tensor]]


@dataclass(frozen=True)
class Algo:
    """`loss(forward, params, target, batch, draws)`, where forward(params, obs, noise, taus) runs the network.

    `batch` has obs, action, next_obs, reward, discount and weight. Actions are the env's own numbers; the network's
    places begin at 0, so place = action - first_action, in the loss as in acting.
    `draws(batch_size, generator)` makes the random inputs of one update. A forward pass to act by takes `num_act_noise` normals for
    all rows and `num_act_taus` fractions for each, either may be 0; the greedy policy has no noise and fractions evenly spread.
    `later(forward, target, batch, draws)` is what the loss needs of the target network, by name: all of next_obs and the draws
    that begin with target_. It may be worked out before the update, and is then given in the batch.
    """

    name: str
    loss: Loss
    q_values: Callable[[Tensor], Tensor]
    draws: Callable[[int, torch.Generator], dict[str, Tensor]]
    num_act_noise: int = 0
    num_act_taus: int = 0
    first_action: int = 0
    later: Later | None = None
    custom_loss: str | None = None


def chosen(values: Tensor, actions: Tensor) -> Tensor:
    """values [B, A, ...] of the action that each row took: [B, ...]."""
    index = actions.long().reshape(-1, *[1] * (values.ndim - 1)).expand(-1, 1, *values.shape[2:])
    return values.gather(1, index).squeeze(1)


def look_later(forward: Forward, target: Params, batch: Batch, draws: Draws) -> dict[str, Tensor]:
    """What the target network gives for the next states."""
    return {"later": forward(target, batch["next_obs"], draws.get("target_noise"), None)}


def look_ahead(
    forward: Forward, params: Params, target: Params, batch: Batch, draws: Draws, double: bool
) -> tuple[Tensor, Tensor]:
    """What the target network gives for the next states, and what the best action is chosen by: with double the online network."""
    later = (batch if "later" in batch else look_later(forward, target, batch, draws))["later"]
    if not double:
        return later, later
    return later, forward(params, batch["next_obs"], draws.get("choose_noise"), None)


def outcome(priorities: Tensor, q: Tensor, td: Tensor) -> Outcome:
    return Outcome(priorities.detach(), q.detach(), td.detach())


def midpoints(count: int, device: torch.device | None = None) -> Tensor:
    """The middles of `count` equal parts of 0..1."""
    return (torch.arange(count, device=device, dtype=torch.float32) + 0.5) / count
