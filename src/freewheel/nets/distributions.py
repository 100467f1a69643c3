"""Policies over actions: from a network's outputs to actions, their log-chances and the entropy.

The outputs of a row are: Discrete, its n logits; MultiDiscrete, the logits of all choices side by side; Box, the means and
then the logarithms of the deviations. Sampling is in numpy, which is cheaper for the few rows of a step; training in torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from freewheel.errors import ConfigError
from freewheel.spec import Space

Array = np.ndarray[Any, Any]

LOG_2PI = math.log(2 * math.pi)
# Beyond these a squashed Gaussian is a single action, or even chances at both bounds.
LEAST_LOG_STD, MOST_LOG_STD = -20.0, 2.0


class Actions(Protocol):
    """How the outputs of a network are a distribution over the actions of a space."""

    num_outputs: int  # of the network, for each row
    num_noise: int  # random numbers that one draw takes: uniform, or normal if `is_normal`
    is_normal: bool
    spans: Sequence[tuple[int, int]]  # where the outputs of each choice begin and end; none where there are no choices

    def sample(self, out: Array, noise: Array) -> tuple[Array, Array]:
        """One action per row as it is stored, and its log-chance [k]."""

    def best(self, out: Array) -> Array:
        """The likeliest action of each row, as it is stored."""

    def for_env(self, actions: Array) -> Array:
        """Stored actions as the env takes them."""

    def log_prob(self, out: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Log-chances of stored actions, and the entropy of each row."""


class Choices:
    """Discrete, MultiDiscrete and MultiBinary: independent choices, each by its own softmax."""

    is_normal = False

    def __init__(self, counts: list[int], starts: Array, shape: tuple[int, ...], dtype: Any) -> None:
        self.counts = counts
        self.num_outputs = sum(counts)
        self.num_noise = len(counts)
        self._shape, self._dtype = shape, np.dtype(dtype)
        self._starts = starts.reshape(-1).astype(np.int64)
        ends = np.cumsum(counts).tolist()
        self.spans: Sequence[tuple[int, int]] = [(end - count, end) for count, end in zip(counts, ends, strict=True)]

    def sample(self, out: Array, noise: Array) -> tuple[Array, Array]:
        if len(self.spans) == 1:
            only, chance = _drawn(out, noise)
            return self._numbered(only[:, None]), chance
        each = [_drawn(out[:, first:end], noise[:, i : i + 1]) for i, (first, end) in enumerate(self.spans)]
        log_prob: Array = np.stack([log_prob for _, log_prob in each]).sum(0)
        return self._numbered(np.stack([place for place, _ in each], 1)), log_prob

    def best(self, out: Array) -> Array:
        places = [out[:, first:end].argmax(1) for first, end in self.spans]
        return self._numbered(np.stack(places, 1))

    def for_env(self, actions: Array) -> Array:
        return actions

    def log_prob(self, out: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        places = actions.reshape(len(out), -1).long()
        log_prob, entropy = out.new_zeros(len(out)), out.new_zeros(len(out))
        for i, (first, end) in enumerate(self.spans):
            log_chances = out[:, first:end].log_softmax(1)
            place = places[:, i : i + 1] - int(self._starts[i])
            log_prob = log_prob + log_chances.gather(1, place).squeeze(1)
            entropy = entropy - (log_chances.exp() * log_chances).sum(1)
        return log_prob, entropy

    def _numbered(self, places: Array) -> Array:
        return (places + self._starts).astype(self._dtype).reshape(len(places), *self._shape)


def _drawn(logits: Array, noise: Array) -> tuple[Array, Array]:
    """The place that each row's share of the summed chances falls on, and its log-chance. `noise` [k, 1] is in 0..1."""
    logits = logits - logits.max(1, keepdims=True)
    sums = np.exp(logits).cumsum(1)
    total = sums[:, -1:]
    # A place without a chance has the sum of the one before it, so that no share falls on it.
    place = (sums <= noise * total).sum(1)
    log_prob: Array = logits[np.arange(len(place)), place] - np.log(total[:, 0])
    return place, log_prob


class Gaussian:
    """Box: independent normal distributions. What is stored is what was drawn; the env gets it clipped to the bounds."""

    is_normal = True
    spans: Sequence[tuple[int, int]] = ()

    def __init__(self, space: spaces.Box) -> None:
        self._low, self._high = space.low, space.high
        self._dtype = np.dtype(space.dtype)
        self.size = int(np.prod(space.shape, dtype=np.int64))
        self.num_outputs, self.num_noise = 2 * self.size, self.size

    def sample(self, out: Array, noise: Array) -> tuple[Array, Array]:
        mean, log_std = out[:, : self.size], out[:, self.size : 2 * self.size]
        drawn = (mean + np.exp(log_std) * noise).astype(self._dtype)
        # Of the number that is stored, not of the noise: in float32 the two differ a little.
        away = (drawn - mean) * np.exp(-log_std)
        log_prob = (-0.5 * away * away - log_std).sum(1) - np.float32(0.5 * LOG_2PI * self.size)
        return drawn.reshape(len(out), *self._low.shape), log_prob.astype(np.float32)

    def best(self, out: Array) -> Array:
        return out[:, : self.size].astype(self._dtype).reshape(len(out), *self._low.shape)

    def for_env(self, actions: Array) -> Array:
        return np.clip(actions, self._low, self._high)

    def log_prob(self, out: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = out[:, : self.size], out[:, self.size : 2 * self.size]
        away = (actions.reshape(len(out), -1).float() - mean) * torch.exp(-log_std)
        log_prob = (-0.5 * away.square() - log_std).sum(1) - 0.5 * LOG_2PI * self.size
        return log_prob, (log_std + 0.5 * (1 + LOG_2PI)).sum(1)


def actions_of(space: Space) -> Choices | Gaussian:
    """The distribution for an action space."""
    shape = tuple(space.shape or ())
    if isinstance(space, spaces.Discrete):
        return Choices([int(space.n)], np.array([space.start]), (), space.dtype)
    if isinstance(space, spaces.MultiDiscrete):
        return Choices(space.nvec.reshape(-1).tolist(), np.asarray(space.start), shape, space.dtype)
    if isinstance(space, spaces.MultiBinary):
        size = int(np.prod(shape, dtype=np.int64))
        return Choices([2] * size, np.zeros(size), shape, space.dtype)
    if isinstance(space, spaces.Box) and np.dtype(space.dtype).kind == "f":
        return Gaussian(space)
    raise ConfigError(
        f"ppo acts in Discrete, MultiDiscrete, MultiBinary and Box spaces of floats; this env has {space}. "
        "Wrap the env so that its actions are one of them."
    )


class SquashedGaussian:
    """Box with bounds: normal distributions whose draws tanh brings between the bounds. What is stored is what the env gets."""

    is_normal = True
    spans: Sequence[tuple[int, int]] = ()

    def __init__(self, space: Space) -> None:
        is_box = isinstance(space, spaces.Box) and np.dtype(space.dtype).kind == "f"
        if not is_box or not np.isfinite([space.low, space.high]).all():  # type: ignore[attr-defined]
            raise ConfigError(
                f"sac acts in Box spaces of floats whose bounds are finite; this env has {space}. Wrap the env so that its "
                "actions are bounded (gymnasium.wrappers.RescaleAction), or use ppo."
            )
        self._shape, self._dtype = tuple(space.shape or ()), np.dtype(space.dtype)
        low, high = (np.asarray(bound, np.float64).reshape(-1) for bound in (space.low, space.high))  # type: ignore[attr-defined]
        self._middle, self._reach = ((high + low) / 2).astype(np.float32), ((high - low) / 2).astype(np.float32)
        self._low, self._high = space.low, space.high  # type: ignore[attr-defined]
        self.size = len(self._middle)
        self.num_outputs, self.num_noise = 2 * self.size, self.size

    def sample(self, out: Array, noise: Array) -> tuple[Array, Array]:
        """The log-chance is not worked out: nobody acts by it."""
        mean, log_std = out[:, : self.size], np.clip(out[:, self.size :], LEAST_LOG_STD, MOST_LOG_STD)
        return self._bounded(np.tanh(mean + np.exp(log_std) * noise)), np.zeros(len(out), np.float32)

    def best(self, out: Array) -> Array:
        return self._bounded(np.tanh(out[:, : self.size]))

    def for_env(self, actions: Array) -> Array:
        return actions

    def log_prob(self, out: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError("a squashed Gaussian draws and values in one: `draw`.")

    def draw(self, out: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions in -1..1 that the gradient flows through, and their log-chances [B] there."""
        mean, log_std = out[:, : self.size], out[:, self.size :].clamp(LEAST_LOG_STD, MOST_LOG_STD)
        drawn = mean + log_std.exp() * noise
        log_prob = (-0.5 * noise.square() - log_std - 0.5 * LOG_2PI).sum(1)
        # log(1 - tanh(x)^2), which stays finite however far x is out.
        squashed = 2 * (math.log(2) - drawn - torch.nn.functional.softplus(-2 * drawn))
        return torch.tanh(drawn), log_prob - squashed.sum(1)

    def in_unit(self, actions: Tensor) -> Tensor:
        """Stored actions as the critics see them: [B, size] in -1..1."""
        middle, reach = (torch.from_numpy(x).to(actions.device) for x in (self._middle, np.maximum(self._reach, 1e-8)))
        return (actions.reshape(len(actions), -1).float() - middle) / reach

    def _bounded(self, unit: Array) -> Array:
        actions: Array = (self._middle + self._reach * unit).astype(self._dtype).reshape(len(unit), *self._shape)
        return actions.clip(self._low, self._high)  # rounding may go beyond a bound
