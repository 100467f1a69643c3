"""The networks of SAC: an actor, two critics and a temperature, as one module."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from freewheel.config import NetConfig
from freewheel.nets.build import own_body
from freewheel.nets.custom import given_body, make_body, output_of
from freewheel.nets.inputs import Obs, Vector, is_image
from freewheel.nets.layers import begin
from freewheel.nets.mlp import dense
from freewheel.spec import Space

# The layer between an image's features with the action and the value.
CRITIC_WIDTH = 256


class Critic(nn.Module):
    """Observations and actions [B, A] to values [B]. Vectors meet the action at the first layer, images after their body."""

    def __init__(self, obs_space: Space, num_actions: int, net: NetConfig, stack: int, body: Any) -> None:
        super().__init__()
        self.body, size = _encoder(obs_space, net, stack, body)
        hidden = net.hidden if isinstance(self.body, Vector) else (CRITIC_WIDTH,)
        self.layers = dense(size + num_actions, hidden, net.activation, net.norm)
        self.value = nn.Linear(hidden[-1] if hidden else size + num_actions, 1)
        begin(self, net.init, net.activation)

    def forward(self, obs: Obs, action: Tensor) -> Tensor:
        features = self.layers(torch.cat([self.body(obs), action], 1))
        value: Tensor = self.value(features)
        return value.squeeze(1)


class Actor(nn.Module):
    """Observations to the outputs [B, num_outputs] of a distribution over actions."""

    def __init__(self, obs_space: Space, num_outputs: int, net: NetConfig, stack: int, body: Any) -> None:
        super().__init__()
        self.body, size = _encoder(obs_space, net, stack, body)
        hidden = net.hidden if isinstance(self.body, Vector) else ()
        self.layers = dense(size, hidden, net.activation, net.norm)
        self.outputs = nn.Linear(hidden[-1] if hidden else size, num_outputs)
        begin(self, net.init, net.activation)

    def forward(self, obs: Obs) -> Tensor:
        outputs: Tensor = self.outputs(self.layers(self.body(obs)))
        return outputs


class Temperature(nn.Module):
    def __init__(self, alpha: float) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.tensor([math.log(alpha)]))


class SoftActorCritic(nn.Module):
    """Called with observations it acts; with actions too it gives the critics' values [B, 2]."""

    def __init__(
        self, obs_space: Space, num_actions: int, net: NetConfig, alpha: float, stack: int = 1, body: Any = None
    ) -> None:
        super().__init__()
        self.critics = nn.ModuleList(Critic(obs_space, num_actions, net, stack, body) for _ in range(2))
        self.actor = Actor(obs_space, 2 * num_actions, net, stack, body)
        self.temperature = Temperature(alpha)

    def forward(self, obs: Obs | None = None, action: Tensor | None = None) -> Tensor:
        if obs is None:
            return self.temperature.log_alpha
        if action is None:
            outputs: Tensor = self.actor(obs)
            return outputs
        return torch.stack([critic(obs, action) for critic in self.critics], 1)


def _encoder(obs_space: Space, net: NetConfig, stack: int, body: Any) -> tuple[nn.Module, int]:
    given = given_body(body, net.body)
    if given == "mlp" or (given == "auto" and not is_image(obs_space)):
        inputs = Vector(obs_space, stack, net.rescale)
        return inputs, inputs.size
    made = own_body(given, obs_space, net, stack) or make_body(given, obs_space, stack)
    return made, output_of(made, obs_space, stack)[0]
