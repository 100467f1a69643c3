"""PPO: make good actions likelier, but no further from the policy that took them than the clip allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from freewheel.actors.sample_policy import SamplePolicy
from freewheel.algos.algo import Defaults, Params, seeded
from freewheel.algos.from_rollouts import FromRollouts, RolloutSettings, check_rollouts, unused_rollouts
from freewheel.algos.gae import advantages, explained
from freewheel.algos.running_stats import RewardScale, Running
from freewheel.contracts import Array, Batch, Draws, Forward, Hyper, Loss, ParamGroup, Seed, Spaces
from freewheel.memory.dials import Dials
from freewheel.memory.lanes import as_tensors
from freewheel.memory.nested import mapped
from freewheel.memory.rollout import Collected
from freewheel.nets.actor_critic import ActorCritic, build_actor_critic, mask_field
from freewheel.nets.distributions import Actions, Gaussian, actions_of
from freewheel.nets.fast_mlp import fast_forward

# What an update tells beside its loss, in this order.
METRICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")
KL = METRICS.index("approx_kl")
STD_EPS = 1e-8


@dataclass(frozen=True)
class PPOConfig:
    """PPO's switches."""

    gamma: float = 0.99
    """Discount per step."""

    gae_lambda: float = 0.95
    """How far advantages look ahead before they trust the value: 0 one step, 1 to the end of the episode."""

    clip: float = 0.2
    """How far the chance of an action may move from what it was when the row was collected, as a share of it."""

    clip_schedule: Literal["constant", "linear"] = "constant"
    """Course of clip over the run; linear falls to 0."""

    value_clip: float = 0.0
    """How far a value may move from what it was when the row was collected; 0 sets no bound."""

    value_weight: float = 0.5
    """Weight of the values' squared error in the loss."""

    entropy_weight: float = 0.01
    """Weight of the policy's entropy in the loss: more keeps it trying for longer."""

    epochs: int = 4
    """Times that each rollout is learned from."""

    minibatches: int = 4
    """Updates per epoch, each with an equal part of the rollout's rows."""

    normalize_advantage: bool = True
    """Bring the advantages of each minibatch to mean 0 and deviation 1."""

    target_kl: float = 0.0
    """Leave the other epochs out once the policy has moved this far (approximate KL); 0 never does."""

    normalize_obs: bool = False
    """Bring observations to mean 0 and deviation 1 by running statistics, bounded at 10."""

    normalize_reward: bool = False
    """Divide rewards by the running deviation of the discounted returns, bounded at 10."""

    log_std: float = 0.0
    """Box actions: logarithm of the deviation that exploration begins with."""


@dataclass(frozen=True)
class Settings(RolloutSettings):
    """Settings of PPO."""

    ppo: PPOConfig = field(default_factory=PPOConfig)


class Outcome(NamedTuple):
    """The means of METRICS over the rows of an update."""

    means: Tensor

    @classmethod
    def joined(cls, parts: Sequence[Outcome], shares: Sequence[float]) -> Outcome:
        return cls(torch.stack([part.means * share for part, share in zip(parts, shares, strict=True)]).sum(0))

    @classmethod
    def in_order(cls, updates: Sequence[Outcome]) -> Outcome:
        return cls(torch.stack([update.means for update in updates]))

    @property
    def divergence(self) -> Tensor:
        """How far each update's policy is from the one that acted."""
        return self.means.reshape(-1, len(METRICS))[:, KL]

    def metrics(self) -> dict[str, float]:
        each = self.means.reshape(-1, len(METRICS)).mean(0).tolist()
        return dict(zip(METRICS, each, strict=True))


@dataclass(frozen=True)
class PPOLoss:
    """The loss of one minibatch, with the switches of a run."""

    config: PPOConfig
    actions: Actions

    def __call__(self, out: Tensor, batch: Mapping[str, Any], clip: Tensor) -> tuple[Tensor, Tensor]:
        """`out` [B, outputs + 1] is what the network gives for the rows' observations, the value last.

        `batch` has action, log_prob and value as they were when the rows were collected, advantage and goal (the return that
        the value should have said). Gives the loss and METRICS.
        """
        config = self.config
        log_prob, entropy = self.actions.log_prob(out[:, :-1], batch["action"])
        advantage: Tensor = batch["advantage"]
        moved = log_prob - batch["log_prob"]
        ratio = moved.exp()
        bounded = torch.minimum(torch.maximum(ratio, 1 - clip), 1 + clip)
        policy_loss = -torch.minimum(advantage * ratio, advantage * bounded).mean()
        value_loss = self._value_loss(out[:, -1], batch)
        spread = entropy.mean()
        loss = policy_loss + config.value_weight * value_loss - config.entropy_weight * spread
        with torch.no_grad():
            # (r - 1) - log r: never negative, and of little variance where r is near 1.
            kl = ((ratio - 1) - moved).mean()
            clipped = ((ratio - 1).abs() > clip).float().mean()
            means = torch.stack([policy_loss.detach(), value_loss.detach(), spread.detach(), kl, clipped])
        return loss, means

    def _value_loss(self, value: Tensor, batch: Mapping[str, Any]) -> Tensor:
        goal: Tensor = batch["goal"]
        error = (value - goal).square()
        bound = self.config.value_clip
        if bound > 0:
            near = batch["value"] + (value - batch["value"]).clamp(-bound, bound)
            error = torch.maximum(error, (near - goal).square())
        return error.mean()


class Algorithm(FromRollouts, Defaults):
    name = "ppo"
    Settings = Settings
    defaults = {  # noqa: RUF012
        "net.hidden": (64, 64),
        "net.activation": "tanh",
        "net.init": "orthogonal",
        "learner.lr": 3e-4,
        "learner.adam_eps": 1e-5,
        "learner.clip_norm": 0.5,
    }
    is_lockstep = True
    can_sample = True
    uses_mask = True
    outcome = Outcome
    extra = {"log_prob": ("float32", ()), "value": ("float32", ())}  # noqa: RUF012

    def __init__(self, config: Any, spaces: Spaces, seed: Seed, body: Any = None, loss: Any = None) -> None:
        super().__init__(config, spaces, seed)
        self.actions = actions_of(spaces.action)
        self.net: ActorCritic = seeded(seed("net"), lambda: self._build(body))  # type: ignore[assignment]
        self.groups = (ParamGroup("all", clip_norm=config.learner.clip_norm),)
        self.losses = (Loss(self.loss),)
        self.columns = ("log_prob", "advantage", "goal", *(("value",) if config.ppo.value_clip > 0 else ()))
        self._loss = PPOLoss(config.ppo, self.actions)
        self.obs_stats = Running(len(self.net.norm.mean)) if self.net.norm is not None else None
        has_scale = config.ppo.normalize_reward
        self.reward_scale = RewardScale(spaces.num_lanes, config.ppo.gamma) if has_scale else None
        self._explained = 0.0

    def _build(self, body: Any) -> nn.Module:
        config = self.config
        return build_actor_critic(
            self.spaces.obs,
            self.actions.num_outputs,
            config.net,
            spans=self.actions.spans,
            log_std=config.ppo.log_std if isinstance(self.actions, Gaussian) else None,
            normalize=config.ppo.normalize_obs,
            stack=config.world.stack,
            body=body,
        )

    def policy(
        self, net: nn.Module, seed: Seed, lanes: range, all_lanes: int, dials: Dials | None = None
    ) -> SamplePolicy:
        mask = mask_field(self.spaces.obs)
        return SamplePolicy(net, self.actions, seed("act"), len(lanes), lanes.start, mask=mask)

    def loss(
        self, forward: Forward, params: Params, target: Params, batch: Batch, draws: Draws, hyper: Hyper
    ) -> tuple[Tensor, Outcome]:
        loss, means = self._loss(forward(params, batch["obs"]), batch, hyper["clip"])
        return loss, Outcome(means)

    def hyper(self, share_done: float) -> dict[str, float]:
        ppo = self.config.ppo
        return {"clip": ppo.clip * (1 - share_done if ppo.clip_schedule == "linear" else 1.0)}

    def prepare(self, rows: Collected, learner: Any, is_new: bool) -> dict[str, Any]:
        """All that the minibatches are cut from, one line per kept row."""
        if self.reward_scale is not None and is_new:
            rows.reward = self.reward_scale(rows)
        if len(rows.final_at[0]):
            rows.next_value[rows.final_at] = self.outputs(learner, rows.final_obs)[:, -1].numpy()
        value, log_prob, goal, advantage = self.estimate(rows, learner)
        self._explained = explained(value, goal)
        columns = {"log_prob": log_prob, "advantage": advantage, "goal": goal}
        if self.config.ppo.value_clip > 0:
            columns["value"] = value
        return rows.batch(columns)

    def estimate(self, rows: Collected, learner: Any) -> tuple[Array, Array, Array, Array]:
        """Values, log-chances, goals and advantages of the kept rows."""
        ppo = self.config.ppo
        advantage = advantages(
            rows.reward, rows.value, rows.next_value, rows.terminated, rows.goes_on, ppo.gamma, ppo.gae_lambda
        )[rows.kept]
        value = rows.value[rows.kept]
        return value, rows.columns["log_prob"], value + advantage, advantage

    def finish(self, minibatch: dict[str, Any]) -> dict[str, Any]:
        """Advantages are normalised over the whole minibatch, before it is split among workers or into parts."""
        if self.config.ppo.normalize_advantage:
            x = minibatch["advantage"]
            minibatch["advantage"] = (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + STD_EPS)
        return minibatch

    def observe(self, rows: Collected, learner: Any) -> None:
        """Statistics move after the updates: while a rollout is learned from they are those that it was collected with."""
        net = learner.update.passes.net
        if net.norm is None or self.obs_stats is None:
            return
        with torch.no_grad():
            vector = net.raw(as_tensors(rows.obs))
            self.obs_stats.add(vector)
            net.norm.mean.copy_(self.obs_stats.mean)
            net.norm.var.copy_(self.obs_stats.var)

    def stats(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        if self.obs_stats is not None:
            found |= {f"stats.obs.{name}": tensor for name, tensor in self.obs_stats.tensors().items()}
        if self.reward_scale is not None:
            found |= {f"stats.reward.{name}": tensor for name, tensor in self.reward_scale.tensors().items()}
        return found

    def metrics(self) -> dict[str, float]:
        return {"explained_variance": self._explained}

    def outputs(self, learner: Any, obs: Mapping[str, Array]) -> Tensor:
        """Of the weights as they are, for rows of any number: a minibatch at a time, which is what fits in memory."""
        net, most, count = learner.update.passes.eval_net, self.batch_rows, len(next(iter(obs.values())))
        fast = fast_forward(net)
        if fast is not None:
            pieces = [{name: rows[i : i + most] for name, rows in obs.items()} for i in range(0, count, most)]
            return torch.from_numpy(np.concatenate([fast(piece) for piece in pieces]))
        rows, device = as_tensors(obs), learner.update.device
        with torch.inference_mode():
            parts = [net(_cut(rows, i, i + most, device)) for i in range(0, count, most)]
        return torch.cat(parts).cpu()

    @property
    def epochs(self) -> int:
        return int(self.config.ppo.epochs)

    @property
    def minibatches(self) -> int:
        return int(self.config.ppo.minibatches)

    @property
    def target_kl(self) -> float:
        return float(self.config.ppo.target_kl)

    @classmethod
    def unused_here(cls, spaces: Spaces, has_loss: bool) -> dict[str, str]:
        if isinstance(actions_of(spaces.action), Gaussian):
            return {}
        return {"ppo.log_std": f"it is for Box actions, and this env has {spaces.action}"}

    @classmethod
    def check(cls, config: Any) -> None:
        check_rollouts(config, config.ppo.minibatches)

    @classmethod
    def unused(cls, config: Any) -> dict[str, str]:
        found = unused_rollouts(config)
        if config.rollout.collect == "episodes":
            # An episode's rows are never too old, and actors of ppo are never ahead.
            found["rollout.max_lag"] = "rollout.collect=episodes leaves no row out"
        found["rollout.reuse"] = f"it belongs to appo, and algo={config.algo}"
        return found


def _cut(obs: Any, first: int, end: int, device: torch.device) -> Any:
    if isinstance(obs, Mapping):
        return mapped(obs, lambda tensor: tensor[first:end].to(device))
    return obs[first:end].to(device)
