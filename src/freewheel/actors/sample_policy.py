"""A stochastic policy: the outputs of a network make a distribution over actions, and actions are sampled from it.

The outputs of a row are: Discrete, its n logits; MultiDiscrete, the logits of all choices side by side; Box, the means and
then the log standard deviations. Sampling is in numpy, which is cheaper for the few rows of a step; training in torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from freewheel.contracts import Array, Choice, Columns, ColumnSpec
from freewheel.errors import ConfigError
from freewheel.memory.lanes import as_tensors
from freewheel.nets.actor_critic import ActorCritic, fast_forward
from freewheel.nets.masks import first_forbidden
from freewheel.spec import Space, choices

LOG_2PI = math.log(2 * math.pi)
# Draws made at once for a lane: a generator costs about as much as a hundred numbers.
BLOCK = 128
# u * sum must stay below the sum in float32 too.
BELOW_ONE = np.float32(1 - 1e-6)


class Actions(Protocol):
    """How the outputs of a network are a distribution over the actions of a space."""

    num_outputs: int  # of the network, for each row
    num_noise: int  # random numbers that one draw takes: uniform, or normal if `is_normal`
    is_normal: bool
    spans: Sequence[tuple[int, int]]  # first and end output of each discrete choice; empty for Box

    def sample(self, out: Array, noise: Array) -> tuple[Array, Array]:
        """One action per row as it is stored, and its log-probability [k]."""

    def best(self, out: Array) -> Array:
        """The most likely action of each row, as it is stored."""

    def for_env(self, actions: Array) -> Array:
        """Stored actions as the env takes them."""


class SamplePolicy:
    """Samples from `actions`, by the outputs [k, num_outputs] of a network; each lane has its own random stream.

    With `has_value` the network's last output is the state's value, and rows get it and the log-probability of the action.
    `mask` names the field of allowed actions.
    """

    epsilon = None

    def __init__(
        self,
        net: nn.Module,
        actions: Actions,
        seed: int,
        num_lanes: int = 1,
        first_lane: int = 0,
        *,
        mask: str | None = None,
        has_value: bool = True,
    ) -> None:
        self.actions, self._mask, self._has_value = actions, mask, has_value
        self.noise = LaneNoise(seed, num_lanes, actions.num_noise, is_normal=actions.is_normal, first_lane=first_lane)
        number: ColumnSpec = ("float32", ())
        self.extra: Mapping[str, ColumnSpec] = {"log_prob": number, "value": number} if has_value else {}
        self.refresh: Callable[[], None] = lambda: None  # replaced where a copy of the network follows the weights
        self.use(net)

    def use(self, net: nn.Module) -> None:
        self.net = net
        self._fast = fast_forward(net) if isinstance(net, ActorCritic) else None
        self._device = next((tensor.device for tensor in net.parameters()), torch.device("cpu"))

    def outputs(self, obs: Mapping[str, Array]) -> Array:
        if self._fast is not None:
            return self._fast(obs)
        with torch.inference_mode():
            out: Array = self.net(as_tensors(obs, self._device)).float().cpu().numpy()
        return out

    def choose(self, obs: Columns, lanes: Array, first: Array, step: int) -> Choice:
        out = self.outputs(obs)
        if not self._has_value:
            stored, _ = self.actions.sample(out, self.noise.draw(lanes))
            return Choice({"action": self.actions.for_env(stored)}, {"action": stored})
        stored, log_prob = self.actions.sample(out[:, :-1], self.noise.draw(lanes))
        columns = {"action": stored, "log_prob": log_prob, "value": out[:, -1].copy()}
        return Choice({"action": self.actions.for_env(stored)}, columns)

    def greedy(self, obs: Columns) -> Columns:
        out = self.outputs(obs)
        return {"action": self.actions.for_env(self.actions.best(out[:, :-1] if self._has_value else out))}

    def bootstrap(self, obs: Columns) -> Array | None:
        return self.outputs(obs)[:, -1] if self._has_value else None

    def refuse(self, obs: Columns) -> tuple[int, str] | None:
        return None if self._mask is None else first_forbidden(obs[self._mask], self.actions.spans)

    def state(self) -> dict[str, Any]:
        return {"random.drawn": self.noise.drawn}

    def set_state(self, state: Mapping[str, Any]) -> list[str]:
        self.noise.go_to(np.asarray(state["random.drawn"]))
        return []


class Choices:
    """Discrete, MultiDiscrete and MultiBinary: independent choices, each by its own softmax."""

    is_normal = False

    def __init__(self, space: Space) -> None:
        counts, starts = choices(space)
        self.num_outputs, self.num_noise = sum(counts), len(counts)
        self._shape, self._dtype = tuple(space.shape or ()), np.dtype(space.dtype)
        self._starts = np.array(starts, np.int64)
        # One choice that counts from 0: its index is the action as it is stored.
        self._is_index = self._shape == () and starts == [0] and self._dtype == np.int64
        ends = np.cumsum(counts).tolist()
        self.spans: Sequence[tuple[int, int]] = [(end - count, end) for count, end in zip(counts, ends, strict=True)]

    def sample(self, out: Array, noise: Array) -> tuple[Array, Array]:
        if len(self.spans) == 1:
            only, log_prob = _sampled(out, noise)
            return only if self._is_index else self._numbered(only[:, None]), log_prob
        each = [_sampled(out[:, first:end], noise[:, i : i + 1]) for i, (first, end) in enumerate(self.spans)]
        log_prob = np.stack([log_prob for _, log_prob in each]).sum(0)
        return self._numbered(np.stack([index for index, _ in each], 1)), log_prob

    def best(self, out: Array) -> Array:
        return self._numbered(np.stack([out[:, first:end].argmax(1) for first, end in self.spans], 1))

    def for_env(self, actions: Array) -> Array:
        return actions

    def log_prob(self, out: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities of stored actions, and the entropy of each row."""
        indices = actions.reshape(len(out), -1).long()
        log_prob, entropy = out.new_zeros(len(out)), out.new_zeros(len(out))
        for i, (first, end) in enumerate(self.spans):
            log_probs = out[:, first:end].log_softmax(1)
            index = indices[:, i : i + 1] - int(self._starts[i])
            log_prob = log_prob + log_probs.gather(1, index).squeeze(1)
            entropy = entropy - (log_probs.exp() * log_probs).sum(1)
        return log_prob, entropy

    def _numbered(self, indices: Array) -> Array:
        return (indices + self._starts).astype(self._dtype).reshape(len(indices), *self._shape)


def _sampled(logits: Array, noise: Array) -> tuple[Array, Array]:
    """The index sampled for each row, and its log-probability. `noise` [k, 1] is in 0..1."""
    logits = logits - np.maximum.reduce(logits, 1, keepdims=True)
    sums = np.exp(logits).cumsum(1)
    total = sums[:, -1:]
    # An index with probability 0 has the same sum as the one before it, so it is never sampled.
    index = np.add.reduce(sums <= noise * total, 1, np.int64)
    # One flat index costs a third of two, and unlike `take` keeps the interpreter: others would be woken for nothing.
    log_prob: Array = logits.reshape(-1)[index + _first_places(*logits.shape)] - np.log(total[:, 0])
    return index, log_prob


@lru_cache(maxsize=64)
def _first_places(rows: int, width: int) -> Array:
    """Where each row begins in the flat array."""
    return np.arange(0, rows * width, width)


class Gaussian:
    """Box: independent normal distributions. The sample is stored as it is; the env gets it clipped to the bounds."""

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
    if choices(space)[0]:
        return Choices(space)
    if isinstance(space, spaces.Box) and np.dtype(space.dtype).kind == "f":
        return Gaussian(space)
    raise ConfigError(
        f"ppo acts in Discrete, MultiDiscrete, MultiBinary and Box spaces of floats; this env has {space}. "
        "Wrap the env so that its actions are one of them."
    )


class LaneNoise:
    """`width` numbers per draw, uniform in 0..1 or normal; draw i of a lane depends on the seed, the lane and i alone.

    `drawn` counts the draws of each lane and is the whole state; `go_to` restores it.
    """

    def __init__(self, seed: int, num_lanes: int, width: int, *, is_normal: bool, first_lane: int = 0) -> None:
        self._drawn = np.zeros(num_lanes, np.int64)
        self._seed, self._is_normal, self._first_lane = seed, is_normal, first_lane
        self._blocks = np.zeros((BLOCK, num_lanes, width), np.float32)
        self._made = np.full(num_lanes, -1, np.int64)  # which block each lane has
        self._even: int | None = 0  # the draws of every lane, if all have as many
        self._even_block = -1  # which block all lanes have
        # The array by which a world names all lanes in order, which it gives again and again.
        self._all: Array | None = None

    @property
    def drawn(self) -> Array:
        if self._even is not None:
            self._drawn[...] = self._even
        return self._drawn

    def go_to(self, drawn: Array) -> None:
        """Continues after so many draws of each lane."""
        self._drawn[...] = drawn
        self._even = int(drawn[0]) if (drawn == drawn[0]).all() else None
        self._made[...] = self._even_block = -1

    def draw(self, lanes: Array) -> Array:
        """[k, width] for these lanes, all different. Not to be changed."""
        even = self._even
        if even is None or len(lanes) != len(self._made):
            return self._draw_unevenly(lanes)
        block, index = divmod(even, BLOCK)
        if block != self._even_block:
            for lane in range(len(self._made)):
                self._make(lane, block)
            self._even_block = block
        self._even = even + 1
        drawn: Array = self._blocks[index]
        if lanes is self._all:
            return drawn
        if self._all is None and (lanes[:-1] < lanes[1:]).all():
            self._all = lanes
        return drawn.take(lanes, 0)

    def _draw_unevenly(self, lanes: Array) -> Array:
        drawn, self._even = self.drawn, None
        count = drawn[lanes]
        block, index = np.divmod(count, BLOCK)
        for i in np.flatnonzero(block != self._made[lanes]).tolist():
            self._make(int(lanes[i]), int(block[i]))
        drawn[lanes] = count + 1
        rows: Array = self._blocks[index, lanes]
        return rows

    def _make(self, lane: int, block: int) -> None:
        seed = np.random.SeedSequence([self._seed, lane + self._first_lane, block])
        generator = np.random.Generator(np.random.PCG64(seed))
        draw = generator.standard_normal if self._is_normal else generator.random
        rows = draw(self._blocks[:, lane].shape, np.float32)
        self._blocks[:, lane] = rows if self._is_normal else rows * BELOW_ONE
        self._made[lane] = block
