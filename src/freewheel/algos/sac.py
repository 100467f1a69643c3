"""SAC: an actor that maximises return and entropy, two critics of which the lower counts, and a temperature that weighs the entropy.

Two losses in order. The critics learn r + discount * (min Q' - alpha * log pi) of the next state; the actor learns to raise
min Q - alpha * log pi, and the temperature, by the same actions, to keep the entropy near its target.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from freewheel.actors.sample_policy import SamplePolicy
from freewheel.algos.algo import Outcome, Params, seeded
from freewheel.algos.from_replay import FromReplay, ReplaySettings
from freewheel.algos.value_range import RewardRange, beyond
from freewheel.config.ranges import LARGE, Range, Share
from freewheel.contracts import Batch, Draws, Forward, Hyper, Loss, ParamGroup, Seed, Spaces
from freewheel.memory.dials import Dials
from freewheel.nets.soft_actor_critic import SoftActorCritic, SquashedGaussian


@dataclass(frozen=True)
class SACConfig:
    """SAC."""

    gamma: Share = 0.99
    """Discount factor per step."""

    n_step: Annotated[int, Range(1, 1000)] = 1
    """n-step returns: sum the rewards of this many steps before bootstrapping."""

    alpha: Annotated[float, Range(1e-8, 1e3)] = 1.0
    """Initial temperature: the weight of the entropy against the return."""

    learn_alpha: bool = True
    """Learn the temperature so that the entropy stays near target_entropy."""

    target_entropy: Annotated[float | None, Range(-LARGE, LARGE)] = None
    """Target entropy in nats; not set: minus the number of action dimensions, without those whose bounds are equal."""

    actor_lr: Annotated[float, Range(0, 1e3)] = 0.0
    """Learning rate of the actor, constant; 0 uses learner.lr with its schedule."""

    alpha_lr: Annotated[float, Range(0, 1e3)] = 0.0
    """Learning rate of the temperature, constant; 0 uses learner.lr with its schedule."""


@dataclass(frozen=True)
class Settings(ReplaySettings):
    """Settings of SAC."""

    sac: SACConfig = field(default_factory=SACConfig)


class Algorithm(FromReplay):
    name = "sac"
    Settings = Settings
    defaults = {  # noqa: RUF012
        "net.hidden": (256, 256),
        "learner.batch_size": 256,
        "learner.ratio": 256.0,
        "learner.lr": 3e-4,
        "learner.clip_norm": 0.0,
        "learner.tau": 0.005,
        "learner.target_every_updates": 1,
        "replay.rows": 1_000_000,
        "local.publish_every_updates": 1,
    }
    section = "sac"
    can_sample = True
    dials = ("lr", "ratio", "prioritized")

    def __init__(self, config: Any, spaces: Spaces, seed: Seed, body: Any = None, loss: Any = None) -> None:
        super().__init__(config, spaces, seed)
        sac = config.sac
        self.actions = SquashedGaussian(spaces.action)
        given = (spaces.obs, self.actions.size, config.net, sac.alpha, config.world.stack, body)
        self.net: SoftActorCritic = seeded(seed("net"), SoftActorCritic, *given)
        asked = sac.target_entropy
        self.target_entropy = -float(self.actions.num_free) if asked is None else asked
        self._most_alpha = sac.alpha  # so far
        self._own_lr = {name: lr for name, lr in (("actor_lr", sac.actor_lr), ("alpha_lr", sac.alpha_lr)) if lr > 0}
        clip = config.learner.clip_norm
        self.groups = (
            ParamGroup("critics", "critics.", clip_norm=clip, target=self.target_rule()),
            ParamGroup("actor", "actor.", "actor_lr" if sac.actor_lr else "lr", clip_norm=clip),
            ParamGroup("temperature", "temperature.", "alpha_lr" if sac.alpha_lr else "lr", decays=False),
        )
        self.losses = (
            Loss(self.critic_loss, (0,), "critic_loss"),
            Loss(self.actor_loss, (1, 2) if sac.learn_alpha else (1,), "actor_loss"),
        )

    def critic_loss(
        self, forward: Forward, params: Params, target: Params, batch: Batch, draws: Draws, hyper: Hyper
    ) -> tuple[Tensor, Outcome]:
        with torch.no_grad():
            alpha = forward(params).exp()
            action, log_prob = self.actions.draw(forward(params, batch["next_obs"]), draws["next"])
            value = forward(target, batch["next_obs"], action).amin(1) - alpha * log_prob
            goal = batch["reward"] + batch["discount"] * value
        q = forward(params, batch["obs"], self.actions.in_unit(batch["action"]))
        error = goal.unsqueeze(1) - q
        loss = 0.5 * (batch["weight"].unsqueeze(1) * error.square()).mean(0).sum()
        td = error.detach()
        return loss, Outcome(td.abs().mean(1), q.detach(), td.mean(1))

    def actor_loss(
        self, forward: Forward, params: Params, target: Params, batch: Batch, draws: Draws, hyper: Hyper
    ) -> tuple[Tensor, None]:
        action, log_prob = self.actions.draw(forward(params, batch["obs"]), draws["now"])
        value = forward(params, batch["obs"], action).amin(1)
        log_alpha = forward(params)
        loss = (log_alpha.detach().exp() * log_prob - value).mean()
        if self.config.sac.learn_alpha:
            loss = loss - (log_alpha * (log_prob.detach() + self.target_entropy)).mean()
        return loss, None

    def draws(self, rows: int, generator: torch.Generator) -> dict[str, Tensor]:
        return {name: torch.randn(rows, self.actions.size, generator=generator) for name in ("next", "now")}

    def hyper(self, share_done: float) -> dict[str, float]:
        return self._own_lr

    def policy(
        self, net: nn.Module, seed: Seed, lanes: range, all_lanes: int, dials: Dials | None = None
    ) -> SamplePolicy:
        return SamplePolicy(net, self.actions, seed("act"), len(lanes), lanes.start, has_value=False)

    def metrics(self) -> dict[str, float]:
        return {"alpha": self.net.temperature["log_alpha"].exp().item()}

    def problems(self, metrics: Mapping[str, float], rewards: RewardRange) -> dict[str, str]:
        self._most_alpha = max(self._most_alpha, self.metrics()["alpha"])
        entropy = max(abs(self.target_entropy), self.actions.num_free)  # of a step, where its policy is near the target
        return beyond(metrics, rewards, self.config.sac.gamma, "sac", self._most_alpha * entropy)

    @classmethod
    def unused(cls, config: Any) -> dict[str, str]:
        found = super().unused(config)
        found["local.target_process"] = "the actor changes with every update, and so do its target values"
        if not config.sac.learn_alpha:
            found |= dict.fromkeys(("sac.target_entropy", "sac.alpha_lr"), "sac.learn_alpha is off")
        return found
