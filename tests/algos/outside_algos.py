"""Two complete algorithms as a user would write them, in a file of their own: n-step SARSA, and REINFORCE with a baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from freewheel.actors.sample_policy import SamplePolicy, actions_of
from freewheel.actors.value_policy import Explorer, ValuePolicy
from freewheel.algos.algo import seeded
from freewheel.algos.from_rollouts import FromRollouts, RolloutSettings
from freewheel.algos.ppo import scan
from freewheel.algos.value_based import chosen
from freewheel.config import ExploreConfig, QConfig, Range
from freewheel.contracts import Choice, Loss, ParamGroup
from freewheel.memory.lanes import as_tensors
from freewheel.nets.actor_critic import ActorCritic
from freewheel.nets.value_net import build_net


class Told(NamedTuple):
    """The mean of one number over an update's rows."""

    mean: Tensor

    @classmethod
    def joined(cls, parts: Sequence[Told], shares: Sequence[float]) -> Told:
        return cls(torch.stack([part.mean * share for part, share in zip(parts, shares, strict=True)]).sum(0))

    @classmethod
    def in_order(cls, updates: Sequence[Told]) -> Told:
        return cls(torch.stack([update.mean for update in updates]))

    def metrics(self) -> dict[str, float]:
        return {"told": self.mean.mean().item()}


@dataclass(frozen=True)
class SarsaConfig:
    """SARSA's switches."""

    gamma: Annotated[float, Range(0, 1)] = 0.99
    """Discount per step."""

    n_step: Annotated[int, Range(1, 1000)] = 5
    """Steps of reward before the value of the next action."""


@dataclass(frozen=True)
class SarsaSettings(RolloutSettings):
    sarsa: SarsaConfig = field(default_factory=SarsaConfig)
    explore: ExploreConfig = field(default_factory=ExploreConfig)


class SarsaPolicy(ValuePolicy):
    """Epsilon-greedy; a row keeps the value of the action that was taken."""

    extra = {"value": ("float32", ())}  # noqa: RUF012

    def choose(self, obs: Any, lanes: Any, first: Any, step: int) -> Choice:
        made = super().choose(obs, lanes, first, step)
        values = self.values(obs, lanes).numpy()
        taken = values[np.arange(len(lanes)), made.actions["action"]]
        return Choice(made.actions, {**made.columns, "value": taken.astype(np.float32)})

    def bootstrap(self, obs: Any) -> Any:
        return self.values(obs).numpy().max(1)


class Sarsa(FromRollouts):
    name = "sarsa"
    Settings = SarsaSettings
    defaults = {"rollout.rows": 8, "learner.lr": 1e-3}  # noqa: RUF012
    epochs = 4
    is_lockstep = True
    dials = ("epsilon", "lr")
    outcome = Told
    extra = SarsaPolicy.extra
    columns = ("goal",)
    num_act_noise = num_act_taus = first_action = 0

    def __init__(self, config: Any, spaces: Any, seed: Any, body: Any = None, loss: Any = None) -> None:
        super().__init__(config, spaces, seed)
        make = lambda: build_net(spaces.obs, spaces.action, config.net, QConfig(), config.algo, body=body)  # noqa: E731
        self.net = seeded(seed("net"), make)
        self.groups = (ParamGroup("all", clip_norm=config.learner.clip_norm),)
        self.losses = (Loss(self.loss),)

    def q_values(self, out: Tensor) -> Tensor:
        return out

    def policy(self, net: nn.Module, seed: Any, lanes: range, all_lanes: int, dials: Any = None) -> SarsaPolicy:
        actions = self.spaces.action
        how = {"first_lane": lanes.start, "all_lanes": all_lanes}
        explorer = Explorer(self.config.explore, len(lanes), int(actions.n), seed("explore"), **how)
        return SarsaPolicy(net, self, explorer, actions.dtype, seed("noise"), len(lanes), lanes.start, dials)

    def loss(self, forward: Any, params: Any, target: Any, batch: Any, draws: Any, hyper: Any) -> tuple[Tensor, Told]:
        error = chosen(forward(params, batch["obs"]), batch["action"]) - batch["goal"]
        return 0.5 * error.square().mean(), Told(error.detach().abs().mean())

    def prepare(self, rows: Any, learner: Any, is_new: bool) -> dict[str, Any]:
        # No action follows a truncated episode's final observation: the best one stands for it.
        fill_cuts(rows, learner, lambda out: out.amax(1))
        goal = n_step_goals(rows, self.config.sarsa.gamma, self.config.sarsa.n_step)[rows.kept]
        made = {"obs": as_tensors(rows.obs), "action": torch.from_numpy(rows.action)}
        return made | {"goal": torch.from_numpy(np.ascontiguousarray(goal))}


def fill_cuts(rows: Any, learner: Any, value_of: Any) -> None:
    """The values of the final observations of truncated episodes, which nobody acted from."""
    if len(rows.final_at[0]):
        with torch.no_grad():
            out = learner.update.passes.eval_net(as_tensors(rows.final_obs))
        rows.next_value[rows.final_at] = value_of(out).numpy()


def n_step_goals(rows: Any, gamma: float, n: int) -> Any:
    """Of each place: n rewards and the value of the action after them, fewer where the episode or the rollout ends."""
    value_after = rows.next_value * ~rows.terminated
    goal = rows.reward + np.float32(gamma) * value_after
    for _ in range(n - 1):
        later = np.zeros_like(goal)
        later[:, :-1] = goal[:, 1:]
        goal = rows.reward + np.float32(gamma) * np.where(rows.goes_on, later, value_after)
    return goal


@dataclass(frozen=True)
class ReinforceConfig:
    """REINFORCE's switches."""

    gamma: Annotated[float, Range(0, 1)] = 0.99
    """Discount per step."""

    value_weight: float = 0.5
    """Weight of the baseline's error."""


@dataclass(frozen=True)
class ReinforceSettings(RolloutSettings):
    reinforce: ReinforceConfig = field(default_factory=ReinforceConfig)


class Reinforce(FromRollouts):
    name = "reinforce"
    Settings = ReinforceSettings
    defaults = {"rollout.collect": "episodes", "rollout.rows": 64, "learner.lr": 3e-3}  # noqa: RUF012
    is_lockstep = True
    can_sample = True
    outcome = Told
    extra = {"log_prob": ("float32", ()), "value": ("float32", ())}  # noqa: RUF012
    columns = ("goal", "advantage")

    def __init__(self, config: Any, spaces: Any, seed: Any, body: Any = None, loss: Any = None) -> None:
        super().__init__(config, spaces, seed)
        self.actions = actions_of(spaces.action)
        outputs = self.actions.num_outputs
        self.net = seeded(seed("net"), lambda: ActorCritic(spaces.obs, outputs, config.net, body=body))
        self.groups = (ParamGroup("all", clip_norm=config.learner.clip_norm),)
        self.losses = (Loss(self.loss),)

    def policy(self, net: nn.Module, seed: Any, lanes: range, all_lanes: int, dials: Any = None) -> SamplePolicy:
        return SamplePolicy(net, self.actions, seed("act"), len(lanes), lanes.start)

    def loss(self, forward: Any, params: Any, target: Any, batch: Any, draws: Any, hyper: Any) -> tuple[Tensor, Told]:
        out = forward(params, batch["obs"])
        log_prob, entropy = self.actions.log_prob(out[:, :-1], batch["action"])
        error = (out[:, -1] - batch["goal"]).square().mean()
        loss = -(log_prob * batch["advantage"]).mean() + self.config.reinforce.value_weight * error
        return loss, Told(entropy.detach().mean())

    def prepare(self, rows: Any, learner: Any, is_new: bool) -> dict[str, Any]:
        fill_cuts(rows, learner, lambda out: out[:, -1])
        gamma = np.float32(self.config.reinforce.gamma)
        # Truncated episodes, and those that come in parts since they are longer than a lane.
        after_cut = gamma * rows.next_value * (~rows.terminated & ~rows.goes_on)
        goal = scan(rows.reward + after_cut, gamma * rows.goes_on)
        advantage = goal - rows.value
        found = {"goal": goal[rows.kept], "advantage": advantage[rows.kept]}
        made = {"obs": as_tensors(rows.obs), "action": torch.from_numpy(rows.action)}
        return made | {name: torch.from_numpy(np.ascontiguousarray(column)) for name, column in found.items()}
