"""PPO: make good actions more likely, but no further from the policy that took them than the clip allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from freewheel.actors.sample_policy import Gaussian, SamplePolicy, actions_of
from freewheel.algos.algo import Params, seeded
from freewheel.algos.from_rollouts import FromRollouts, RolloutSettings
from freewheel.algos.running_stats import RewardScale, Running
from freewheel.config.ranges import AboveZero, NotNegative, Positive, Range, Share
from freewheel.contracts import Array, Batch, Draws, Forward, Hyper, Loss, ParamGroup, Seed, Spaces
from freewheel.memory.dials import Dials
from freewheel.memory.lanes import as_tensors
from freewheel.memory.rollout import Collected
from freewheel.nets.actor_critic import ActorCritic, fast_forward
from freewheel.nets.masks import mask_field

# What an update reports beside its loss, in this order.
METRICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")
KL = METRICS.index("approx_kl")
STD_EPS = 1e-8


@dataclass(frozen=True)
class PPOConfig:
    """PPO."""

    gamma: Share = 0.99
    """Discount factor per step."""

    gae_lambda: Share = 0.95
    """GAE lambda: 0 uses one-step advantages, 1 sums all rewards to the end of the episode."""

    clip: AboveZero = 0.2
    """PPO clip range: limit on the change of an action's probability, as a fraction of its probability at collection."""

    clip_schedule: Literal["constant", "linear"] = "constant"
    """Schedule of clip over the run; linear falls to 0."""

    value_clip: NotNegative = 0.0
    """Value clipping: limit on the change of a value since collection; 0 does not clip."""

    value_weight: NotNegative = 0.5
    """Weight of the value loss (squared error)."""

    entropy_weight: NotNegative = 0.01
    """Weight of the entropy bonus; a higher weight explores for longer."""

    epochs: Annotated[int, Range(1, 1000)] = 4
    """Passes over each rollout."""

    minibatches: Positive = 4
    """Minibatches per epoch, of equal size; one update each."""

    normalize_advantage: bool = True
    """Normalise the advantages of each minibatch to mean 0 and standard deviation 1."""

    target_kl: NotNegative = 0.0
    """Skip the remaining epochs once the approximate KL divergence exceeds this; 0 never skips."""

    normalize_obs: bool = False
    """Normalise observations by running mean and standard deviation, and clip them to -10..10."""

    normalize_reward: bool = False
    """Divide rewards by the running standard deviation of the discounted returns, and clip them to -10..10."""

    log_std: Annotated[float, Range(-20, 2)] = 0.0
    """Box actions: initial log standard deviation of the policy."""


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
        """How far each update's policy is from the one that acted (approximate KL)."""
        return self.means.reshape(-1, len(METRICS))[:, KL]

    def metrics(self) -> dict[str, float]:
        each = self.means.reshape(-1, len(METRICS)).mean(0).tolist()
        return dict(zip(METRICS, each, strict=True))


class Algorithm(FromRollouts):
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
    fewer_updates = "ppo.epochs"
    outcome = Outcome
    extra = {"log_prob": ("float32", ()), "value": ("float32", ())}  # noqa: RUF012

    def __init__(self, config: Any, spaces: Spaces, seed: Seed, body: Any = None, loss: Any = None) -> None:
        super().__init__(config, spaces, seed)
        self.actions = actions_of(spaces.action)
        self.net: ActorCritic = seeded(
            seed("net"),
            ActorCritic,
            spaces.obs,
            self.actions.num_outputs,
            config.net,
            spans=self.actions.spans,
            log_std=config.ppo.log_std if isinstance(self.actions, Gaussian) else None,
            normalize=config.ppo.normalize_obs,
            stack=config.world.stack,
            body=body,
        )
        self.groups = (ParamGroup("all", clip_norm=config.learner.clip_norm),)
        self.losses = (Loss(self.loss),)
        self.epochs, self.minibatches, self.target_kl = config.ppo.epochs, config.ppo.minibatches, config.ppo.target_kl
        self.columns = ("log_prob", "advantage", "goal", *(("value",) if config.ppo.value_clip > 0 else ()))
        self.obs_stats = Running(len(self.net.norm.mean)) if self.net.norm is not None else None
        has_scale = config.ppo.normalize_reward
        self.reward_scale = RewardScale(spaces.num_lanes) if has_scale else None
        self._explained = 0.0

    def policy(
        self, net: nn.Module, seed: Seed, lanes: range, all_lanes: int, dials: Dials | None = None
    ) -> SamplePolicy:
        mask = mask_field(self.spaces.obs)
        return SamplePolicy(net, self.actions, seed("act"), len(lanes), lanes.start, mask=mask)

    def loss(
        self, forward: Forward, params: Params, target: Params, batch: Batch, draws: Draws, hyper: Hyper
    ) -> tuple[Tensor, Outcome]:
        """`log_prob` and `value` of the batch are from when the row was collected; `goal` is the return that the value should predict."""
        config, clip, advantage = self.config.ppo, hyper["clip"], batch["advantage"]
        out = forward(params, batch["obs"])
        log_prob, entropies = self.actions.log_prob(out[:, :-1], batch["action"])
        moved = log_prob - batch["log_prob"]
        ratio = moved.exp()
        bounded = torch.minimum(torch.maximum(ratio, 1 - clip), 1 + clip)
        policy_loss = -torch.minimum(advantage * ratio, advantage * bounded).mean()
        value_loss = self._value_loss(out[:, -1], batch)
        entropy = entropies.mean()
        loss = policy_loss + config.value_weight * value_loss - config.entropy_weight * entropy
        with torch.no_grad():
            # (r - 1) - log r: never negative, and of low variance where r is near 1.
            kl = ((ratio - 1) - moved).mean()
            clipped = ((ratio - 1).abs() > clip).float().mean()
            means = torch.stack([policy_loss.detach(), value_loss.detach(), entropy.detach(), kl, clipped])
        return loss, Outcome(means)

    def _value_loss(self, value: Tensor, batch: Batch) -> Tensor:
        goal: Tensor = batch["goal"]
        error = (value - goal).square()
        bound = self.config.ppo.value_clip
        if bound > 0:
            near = batch["value"] + (value - batch["value"]).clamp(-bound, bound)
            error = torch.maximum(error, (near - goal).square())
        return error.mean()

    def hyper(self, share_done: float) -> dict[str, float]:
        ppo = self.config.ppo
        return {"clip": ppo.clip * (1 - share_done if ppo.clip_schedule == "linear" else 1.0)}

    def prepare(self, rows: Collected, learner: Any, is_new: bool) -> dict[str, Any]:
        """The columns of the minibatches, one line per kept row."""
        if self.reward_scale is not None and is_new:
            before = self.reward_scale.gathered
            gathered = running_returns(rows.reward, rows.follows, self.config.ppo.gamma, before)
            rows.reward = self.reward_scale(rows, gathered)
        if len(rows.final_at[0]):
            rows.next_value[rows.final_at] = self.outputs(learner, rows.final_obs)[:, -1].numpy()
        value, log_prob, goal, advantage = self.estimate(rows, learner)
        self._explained = explained(value, goal)
        columns = {"log_prob": log_prob, "advantage": advantage, "goal": goal}
        if self.config.ppo.value_clip > 0:
            columns["value"] = value
        return rows.batch(columns)

    def estimate(self, rows: Collected, learner: Any) -> tuple[Array, Array, Array, Array]:
        """Values, log-probabilities, goals and advantages of the kept rows."""
        ppo = self.config.ppo
        advantage = advantages(
            rows.reward, rows.value, rows.next_value, rows.terminated, rows.goes_on, ppo.gamma, ppo.gae_lambda
        )[rows.kept]
        value = rows.value[rows.kept]
        return value, rows.columns["log_prob"], value + advantage, advantage

    def finish(self, minibatch: dict[str, Any]) -> dict[str, Any]:
        """Normalises advantages over the whole minibatch, before it is split among workers or into parts."""
        if self.config.ppo.normalize_advantage:
            x = minibatch["advantage"]
            minibatch["advantage"] = (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + STD_EPS)
        return minibatch

    def observe(self, rows: Collected, learner: Any) -> None:
        """Updates the statistics after the lesson, so that a rollout is learned from with the statistics it was collected with."""
        net = learner.update.passes.net
        if net.norm is None or self.obs_stats is None:
            return
        with torch.no_grad():
            self.obs_stats.add(net.raw(as_tensors(rows.obs)))
            net.norm.mean.copy_(self.obs_stats.mean)
            net.norm.var.copy_(self.obs_stats.var.clamp(max=torch.finfo(torch.float32).max))

    def stats(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        if self.obs_stats is not None:
            found |= {f"stats.obs.{name}": tensor for name, tensor in vars(self.obs_stats).items()}
        if self.reward_scale is not None:
            found |= {f"stats.reward.{name}": tensor for name, tensor in self.reward_scale.tensors().items()}
        return found

    def metrics(self) -> dict[str, float]:
        return {"explained_variance": self._explained}

    def outputs(self, learner: Any, obs: Mapping[str, Array]) -> Tensor:
        """Of the current weights, a minibatch at a time: that fits in memory."""
        passes, most, count = learner.update.passes, self.batch_rows, len(next(iter(obs.values())))
        net = passes.eval_net
        pieces = [{name: rows[i : i + most] for name, rows in obs.items()} for i in range(0, count, most)]
        # In the precision of the update: the ratio of new to old probabilities begins at 1.
        if passes.precision == "fp32" and (fast := fast_forward(net)) is not None:
            return torch.from_numpy(np.concatenate([fast(piece) for piece in pieces]))
        with torch.inference_mode(), passes.cast():
            return torch.cat([net(as_tensors(piece, learner.update.device)).float() for piece in pieces]).cpu()

    @classmethod
    def unused_here(cls, spaces: Spaces, has_loss: bool) -> dict[str, str]:
        if isinstance(actions_of(spaces.action), Gaussian):
            return {}
        return {"ppo.log_std": f"it is for Box actions, and this env has {spaces.action}"}

    @classmethod
    def check(cls, config: Any, minibatches: int = 1) -> None:
        super().check(config, config.ppo.minibatches)

    @classmethod
    def unused(cls, config: Any) -> dict[str, str]:
        found = super().unused(config)
        if cls.is_lockstep:
            found["rollout.reuse"] = f"it belongs to appo, and algo={config.algo}"
        if cls.is_lockstep and config.rollout.collect == "episodes":
            # Rows of an episode are never too old, and actors in lockstep are never ahead.
            found["rollout.max_lag"] = "rollout.collect=episodes leaves no row out"
        return found


def advantages(
    reward: Array, value: Array, next_value: Array, terminated: Array, goes_on: Array, gamma: float, gae_lambda: float
) -> Array:
    """GAE of arrays [..., T] in the order of time: how much better each action was than the value of its state.

    `next_value` is the value of the state after the action: the next row's, the final observation's where the episode was
    truncated, the newest observation's where the rollout is cut. It is ignored where `terminated`.
    `goes_on`: the next element is the next step of the same episode.
    """
    delta = reward + np.float32(gamma) * next_value * ~terminated - value
    return scan(delta, np.float32(gamma * gae_lambda) * goes_on)


def scan(x: Array, factor: Array) -> Array:
    """y[t] = x[t] + factor[t] * y[t + 1] along the last axis, 0 after its end.

    In about log2(T) passes over the whole array: each doubles how far every element has looked ahead.
    """
    y, far = np.array(x), np.array(factor)
    by = 1
    while by < y.shape[-1]:
        y[..., :-by] += far[..., :-by] * y[..., by:]
        far[..., :-by] *= far[..., by:]
        by *= 2
    return y


def running_returns(reward: Array, follows: Array, gamma: float, before: Array) -> Array:
    """g[t] = reward[t] + gamma * follows[t] * g[t - 1], where g[-1] is `before`: the return of each episode up to t.

    `follows`: the element before belongs to the same episode.
    """
    factor = np.float32(gamma) * follows
    first = np.array(reward)
    first[..., 0] += factor[..., 0] * before
    return scan(first[..., ::-1], factor[..., ::-1])[..., ::-1]


def explained(value: Array, target: Array) -> float:
    """The share of the returns' variance that the values explain: 1 is all of it, 0 or less none."""
    spread = float(target.var())
    return 1.0 - float((target - value).var()) / spread if spread > 0 else 0.0
