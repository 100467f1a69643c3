"""From features to action values or their distributions."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from freewheel.nets.noisy import NoisyLinear


class QHead(nn.Module):
    """Features [..., num_features] to [..., A], or to [..., A, num_values] where an action has several values.

    Dueling: one map gives the state's value, another each action's advantage, whose mean over actions is taken off, so
    that the two cannot drift against each other. With several values per action each is split so by itself.
    """

    def __init__(
        self,
        num_features: int,
        num_actions: int,
        num_values: int | None = None,
        *,
        dueling: bool = False,
        noisy_sigma: float | None = None,
    ) -> None:
        super().__init__()
        width = num_values or 1
        self.shape = (num_actions,) if num_values is None else (num_actions, num_values)
        self.advantage = _linear(num_features, num_actions * width, noisy_sigma, 0)
        self.num_noise = _num_noise(self.advantage)
        self.value = _linear(num_features, width, noisy_sigma, self.num_noise) if dueling else None
        self.num_noise += _num_noise(self.value)

    def forward(self, features: Tensor, noise: Tensor | None = None) -> Tensor:
        rows = features.shape[:-1]
        advantage = _apply(self.advantage, features, noise).reshape(*rows, *self.shape)
        if self.value is None:
            return advantage
        value = _apply(self.value, features, noise).reshape(*rows, 1, *self.shape[1:])
        return value + advantage - advantage.mean(len(rows), keepdim=True)


class FractionEmbedding(nn.Module):
    """Features [B, F] and fractions taus [B, N], or [1, N] for all rows, to [B, N, F]: features times a learned function of each fraction.

    The function is relu(linear(cos(pi i tau))), i = 0 .. num_cosines - 1.
    """

    def __init__(self, num_features: int, num_cosines: int) -> None:
        super().__init__()
        self.num_cosines = num_cosines
        self.linear = nn.Linear(num_cosines, num_features)

    def forward(self, features: Tensor, taus: Tensor) -> Tensor:
        # Made here: as a float buffer they would travel with the weights.
        waves = torch.arange(self.num_cosines, device=taus.device, dtype=taus.dtype) * math.pi
        of_taus = F.relu(self.linear(torch.cos(taus.unsqueeze(-1) * waves)))
        return features.unsqueeze(1) * of_taus


def midpoints(count: int, device: torch.device | None = None) -> Tensor:
    """The middles of `count` equal parts of 0..1."""
    return (torch.arange(count, device=device, dtype=torch.float32) + 0.5) / count


def _linear(num_inputs: int, num_outputs: int, sigma: float | None, first_noise: int) -> nn.Linear | NoisyLinear:
    if sigma is None:
        return nn.Linear(num_inputs, num_outputs)
    return NoisyLinear(num_inputs, num_outputs, sigma, first_noise)


def _num_noise(layer: nn.Module | None) -> int:
    return layer.num_noise if isinstance(layer, NoisyLinear) else 0


def _apply(layer: nn.Module, features: Tensor, noise: Tensor | None) -> Tensor:
    out: Tensor = layer(features, noise) if isinstance(layer, NoisyLinear) else layer(features)
    return out
