"""SAC's update as a single-file script has it, made fast by torch.compile: the critics, the actor, the temperature, the target."""

import copy
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from .control_settings import GAMMA, HIDDEN, LR, TAU

LOG_STD = (-5.0, 2.0)


class Batch(NamedTuple):
    obs: Tensor
    action: Tensor  # between -1 and 1
    reward: Tensor
    next_obs: Tensor
    is_terminal: Tensor


def mlp(num_in: int, num_out: int) -> nn.Sequential:
    first, second = HIDDEN
    return nn.Sequential(
        nn.Linear(num_in, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU(), nn.Linear(second, num_out)
    )


class Actor(nn.Module):
    def __init__(self, num_obs: int, num_actions: int) -> None:
        super().__init__()
        self.body = mlp(num_obs, 2 * num_actions)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Actions between -1 and 1 that were drawn, and the logarithm of their density."""
        mean, log_std = self.body(obs).chunk(2, -1)
        low, high = LOG_STD
        log_std = low + 0.5 * (high - low) * (torch.tanh(log_std) + 1)
        noise = torch.randn_like(mean)
        raw = mean + log_std.exp() * noise
        log_prob = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
        log_prob = log_prob - 2 * (math.log(2.0) - raw - functional.softplus(-2 * raw))
        return torch.tanh(raw), log_prob.sum(-1)


class Critics(nn.Module):
    def __init__(self, num_obs: int, num_actions: int) -> None:
        super().__init__()
        self.first, self.second = (mlp(num_obs + num_actions, 1) for _ in range(2))

    def forward(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.cat([obs, action], -1)
        return self.first(x).squeeze(-1), self.second(x).squeeze(-1)


class Sac:
    """Networks, optimisers and one compiled update."""

    def __init__(self, num_obs: int, num_actions: int) -> None:
        torch.manual_seed(0)
        self.actor, self.critics = Actor(num_obs, num_actions), Critics(num_obs, num_actions)
        self.target = copy.deepcopy(self.critics).requires_grad_(False)
        self.log_alpha = torch.zeros((), requires_grad=True)
        self.entropy = -float(num_actions)
        actor, critics = list(self.actor.parameters()), list(self.critics.parameters())
        self._optimizers = [torch.optim.Adam(own, lr=LR, fused=True) for own in (critics, actor, [self.log_alpha])]
        self._targets: list[Tensor] = list(self.target.parameters())
        self._followed: list[Tensor] = list(critics)
        # Losses and gradients are one graph each; the optimiser's own fused kernel is as fast as a compiled one here.
        self._critic_loss: Callable[..., Tensor] = torch.compile(self.critic_loss, dynamic=False)
        self._actor_loss: Callable[..., tuple[Tensor, Tensor]] = torch.compile(self.actor_loss, dynamic=False)

    def act(self, obs: Tensor) -> Tensor:
        with torch.no_grad():
            action: Tensor = self.actor(obs)[0]
        return action

    def critic_loss(self, batch: Batch) -> Tensor:
        with torch.no_grad():
            action, log_prob = self.actor(batch.next_obs)
            value = torch.minimum(*self.target(batch.next_obs, action)) - self.log_alpha.exp() * log_prob
            goal = batch.reward + GAMMA * (1 - batch.is_terminal) * value
        first, second = self.critics(batch.obs, batch.action)
        return 0.5 * (functional.mse_loss(first, goal) + functional.mse_loss(second, goal))

    def actor_loss(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        action, log_prob = self.actor(obs)
        value = torch.minimum(*self.critics(obs, action))
        return (self.log_alpha.exp().detach() * log_prob - value).mean(), log_prob.detach().mean()

    def update(self, batch: Batch) -> None:
        critics, actor, temperature = self._optimizers
        self._step(critics, self._critic_loss(batch))
        # The critics only say where to go: their own gradients are not needed.
        self.critics.requires_grad_(False)
        loss, log_prob = self._actor_loss(batch.obs)
        self._step(actor, loss)
        self.critics.requires_grad_(True)
        self._step(temperature, -self.log_alpha * (log_prob + self.entropy))
        with torch.no_grad():
            torch._foreach_lerp_(self._targets, self._followed, TAU)

    @staticmethod
    def _step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def random_batch(rows: int, num_obs: int, num_actions: int) -> Batch:
    draws: Any = torch.Generator().manual_seed(0)
    obs, next_obs = (torch.randn(rows, num_obs, generator=draws) for _ in range(2))
    action = 2 * torch.rand(rows, num_actions, generator=draws) - 1
    return Batch(obs, action, torch.randn(rows, generator=draws), next_obs, torch.zeros(rows))
