"""The networks of SAC (an actor, two critics and a temperature, as one module) and its squashed Gaussian over actions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from freewheel.config import NetConfig
from freewheel.contracts import Array
from freewheel.errors import ConfigError
from freewheel.nets.bodies import build_body
from freewheel.nets.custom import given_body
from freewheel.nets.inputs import Obs, takes_vector, vector_input
from freewheel.nets.layers import Output, dense, float32, initialize
from freewheel.spec import Space

# The layer between an image's features with the action and the value.
CRITIC_WIDTH = 256
# Beyond these a squashed Gaussian is a single action, or even chances at both bounds.
MIN_LOG_STD, MAX_LOG_STD = -20.0, 2.0


class SoftActorCritic(nn.Module):
    """Observations give the actor's outputs; observations and actions the critics' values [B, 2]; nothing the log-temperature."""

    def __init__(
        self, obs_space: Space, num_actions: int, net: NetConfig, alpha: float, stack: int = 1, body: Any = None
    ) -> None:
        super().__init__()
        self.critics = nn.ModuleList(Critic(obs_space, num_actions, net, stack, body) for _ in range(2))
        self.actor = Actor(obs_space, 2 * num_actions, net, stack, body)
        self.temperature = nn.ParameterDict({"log_alpha": nn.Parameter(torch.tensor([math.log(alpha)]))})

    def forward(self, obs: Obs | None = None, action: Tensor | None = None) -> Tensor:
        if obs is None:
            log_alpha: Tensor = self.temperature["log_alpha"]
            return log_alpha
        if action is None:
            outputs: Tensor = self.actor(obs)
            return outputs
        return torch.stack([critic(obs, action) for critic in self.critics], 1)


class Critic(nn.Module):
    """Observations and actions [B, A] to values [B]. The action joins vectors at the first layer, images after their body."""

    def __init__(self, obs_space: Space, num_actions: int, net: NetConfig, stack: int, body: Any) -> None:
        super().__init__()
        self.body, size, is_vector = _encoder(obs_space, net, stack, body)
        hidden = net.hidden if is_vector else (CRITIC_WIDTH,)
        self.layers, size = dense(size + num_actions, hidden, net.activation, net.norm)
        self.value = Output(size, 1)
        initialize(self, net.init, net.activation)

    def forward(self, obs: Obs, action: Tensor) -> Tensor:
        features = self.layers(torch.cat([self.body(obs), action], 1))
        with float32(features.device):
            value: Tensor = self.value(features.float())
            return value.squeeze(1)


class Actor(nn.Module):
    """Observations to the outputs [B, num_outputs] of a distribution over actions."""

    def __init__(self, obs_space: Space, num_outputs: int, net: NetConfig, stack: int, body: Any) -> None:
        super().__init__()
        self.body, size, is_vector = _encoder(obs_space, net, stack, body)
        self.layers, size = dense(size, net.hidden if is_vector else (), net.activation, net.norm)
        self.outputs = Output(size, num_outputs)
        initialize(self, net.init, net.activation)

    def forward(self, obs: Obs) -> Tensor:
        features: Tensor = self.layers(self.body(obs))
        with float32(features.device):
            outputs: Tensor = self.outputs(features.float())
            return outputs


def _encoder(obs_space: Space, net: NetConfig, stack: int, body: Any) -> tuple[nn.Module, int, bool]:
    """What observations pass before the layers of an actor or critic, its number of outputs, and whether they stay a plain vector."""
    given = given_body(body, net.body)
    if takes_vector(given, obs_space):
        return *vector_input(obs_space, stack, net.rescale), True
    return *build_body(given, obs_space, net, stack), False


class SquashedGaussian:
    """Box with bounds: normal distributions, squashed between the bounds by tanh. The env gets actions as they are stored."""

    is_normal = True
    spans: Sequence[tuple[int, int]] = ()

    def __init__(self, space: Space) -> None:
        if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
            raise ConfigError(f"sac acts in Box spaces of floats; this env has {space}. For choices use dqn or ppo.")
        is_box = isinstance(space, spaces.Box) and np.dtype(space.dtype).kind == "f"
        # The networks see float32, in which a wider box has no end.
        if not is_box or not (np.abs([space.low, space.high]) < np.finfo(np.float32).max / 2).all():  # type: ignore[attr-defined]
            raise ConfigError(
                f"sac acts in Box spaces of floats whose bounds are finite; this env has {space}. Wrap the env so that its "
                "actions are bounded (gymnasium.wrappers.RescaleAction), or use ppo."
            )
        self._shape, self._dtype = tuple(space.shape or ()), np.dtype(space.dtype)
        low, high = (np.asarray(bound, np.float64).reshape(-1) for bound in (space.low, space.high))  # type: ignore[attr-defined]
        self._middle, self._reach = (high + low) / 2, (high - low) / 2
        self._low, self._high = space.low, space.high  # type: ignore[attr-defined]
        self._is_free = self._reach > 0  # a dimension whose bounds are equal has one action, and no entropy
        self.num_free = int(self._is_free.sum())
        self.size = len(self._middle)
        self.num_outputs, self.num_noise = 2 * self.size, self.size

    def sample(self, out: Array, noise: Array) -> tuple[Array, Array]:
        """Without the log-probability: SAC does not store it."""
        mean, log_std = out[:, : self.size], np.clip(out[:, self.size :], MIN_LOG_STD, MAX_LOG_STD)
        return self._bounded(np.tanh(mean + np.exp(log_std) * noise)), np.zeros(len(out), np.float32)

    def best(self, out: Array) -> Array:
        return self._bounded(np.tanh(out[:, : self.size]))

    def for_env(self, actions: Array) -> Array:
        return actions

    def draw(self, out: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions in -1..1 that the gradient flows through, and their log-probabilities [B] there."""
        mean, log_std = out[:, : self.size], out[:, self.size :].clamp(MIN_LOG_STD, MAX_LOG_STD)
        drawn = mean + log_std.exp() * noise
        log_prob = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
        # log(1 - tanh(x)^2), finite for every x.
        squashed = 2 * (math.log(2) - drawn - torch.nn.functional.softplus(-2 * drawn))
        action = torch.tanh(drawn)
        if self.num_free < self.size:
            is_free = torch.from_numpy(self._is_free).to(drawn.device, drawn.dtype)
            action, log_prob, squashed = action * is_free, log_prob * is_free, squashed * is_free
        return action, log_prob.sum(1) - squashed.sum(1)

    def in_unit(self, actions: Tensor) -> Tensor:
        """Stored actions as the critics see them: [B, size] in -1..1."""
        # In the action's own precision: far from 0 float32 has too few digits for a narrow float64 box.
        dtype = torch.float64 if self._dtype == np.float64 else torch.float32
        reach = np.where(self._reach > 0, self._reach, 1.0)
        middle, half = (torch.from_numpy(x).to(actions.device, dtype) for x in (self._middle, reach))
        return ((actions.reshape(len(actions), -1).to(dtype) - middle) / half).float()

    def _bounded(self, unit: Array) -> Array:
        actions: Array = (self._middle + self._reach * unit).astype(self._dtype).reshape(len(unit), *self._shape)
        return actions.clip(self._low, self._high)  # rounding may go beyond a bound
