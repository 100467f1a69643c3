"""An algorithm with two losses over two parameter groups, as small as can be: a critic with a target, and an actor that follows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from freewheel.config import LearnerConfig
from freewheel.contracts import Loss, ParamGroup, TargetRule
from freewheel.learners.update import Update

ROWS = 12
FOLLOWS = TargetRule(0.5)


class Outcome(NamedTuple):
    error: Tensor  # [B]

    @classmethod
    def joined(cls, parts: Sequence[Outcome], shares: Sequence[float]) -> Outcome:
        return cls(torch.cat([part.error for part in parts]))

    @classmethod
    def in_order(cls, updates: Sequence[Outcome]) -> Outcome:
        return cls(torch.cat([update.error for update in updates]))


class Net(nn.Module):
    """`which` says whose outputs are asked for; the critic sees the observation and an action."""

    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        middle = nn.BatchNorm1d(8) if norm else nn.Identity()
        self.critic = nn.Sequential(nn.Linear(4, 8), middle, nn.Tanh(), nn.Linear(8, 1))
        self.actor = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))

    def forward(self, obs: Tensor, which: str = "actor", action: Tensor | None = None) -> Tensor:
        if which == "actor":
            return self.actor(obs)[:, 0]  # type: ignore[no-any-return]
        assert action is not None
        return self.critic(torch.cat([obs, action[:, None]], 1))[:, 0]  # type: ignore[no-any-return]


class TwoGroups:
    """The actor's loss sees the critic after its step."""

    lookahead = None
    custom_loss = None
    outcome = Outcome
    groups: Sequence[ParamGroup]

    def __init__(
        self,
        critic_rule: TargetRule | None = FOLLOWS,
        actor_rule: TargetRule | None = None,
        norm: bool = False,
        clip: tuple[float, float] = (0.05, 0.0),
    ) -> None:
        torch.manual_seed(0)
        self.net = Net(norm)
        self.groups = (
            ParamGroup("critic", "critic.", clip_norm=clip[0], target=critic_rule),
            ParamGroup("actor", "actor.", lr="actor_lr", clip_norm=clip[1], target=actor_rule),
        )
        self.losses: Sequence[Loss] = (Loss(self.critic_loss, (0,)), Loss(self.actor_loss, (1,)))

    def hyper(self, share_done: float) -> dict[str, float]:
        return {"actor_lr": 1e-3}

    def draws(self, rows: int, generator: torch.Generator) -> dict[str, Tensor]:
        return {"noise": torch.randn(rows, 1, generator=generator)}

    def critic_loss(self, forward: Any, params: Any, target: Any, batch: Any, draws: Any, hyper: Any) -> Any:
        with torch.no_grad():
            later = forward(target, batch["next_obs"]) + 0.1 * draws["noise"][:, 0]
            goal = batch["reward"] + 0.9 * forward(target, batch["next_obs"], "critic", later)
        error = forward(params, batch["obs"], "critic", batch["action"]) - goal
        return error.square().mean(), Outcome(error.detach())

    def actor_loss(self, forward: Any, params: Any, target: Any, batch: Any, draws: Any, hyper: Any) -> Any:
        action = forward(params, batch["obs"])
        return -forward(params, batch["obs"], "critic", action).mean(), None


def rows(seed: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """A batch, and its draws."""
    generator = torch.Generator().manual_seed(seed)
    obs = {name: torch.randn(ROWS, 3, generator=generator) for name in ("obs", "next_obs")}
    numbers = {name: torch.randn(ROWS, generator=generator) for name in ("action", "reward")}
    return obs | numbers, {"noise": torch.randn(ROWS, 1, generator=generator)}


def make(config: LearnerConfig | None = None, unrolled: int = 1, **more: Any) -> Update:
    algo: Any = TwoGroups(**more)
    return Update(algo, config or LearnerConfig(), unrolled=unrolled)
