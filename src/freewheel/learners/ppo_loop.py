"""PPO's learner: a complete rollout becomes advantages, then epochs of minibatches."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from freewheel.algos.gae import advantages, explained
from freewheel.algos.ppo import FIGURES
from freewheel.algos.vtrace import vtrace
from freewheel.config import Config
from freewheel.learners.adam import check_finite
from freewheel.learners.nested import mapped
from freewheel.learners.ppo_step import PPOStep, Updated
from freewheel.learners.running import RewardScale, Running
from freewheel.learners.schedule import lr_at
from freewheel.memory.rollout import Collected, Rollout, Tail, TailsOf
from freewheel.nets.fast_mlp import fast_forward
from freewheel.nets.inputs import Obs, as_tensors
from freewheel.report.ledger import Page
from freewheel.report.phases import PHASES

Array = np.ndarray[Any, Any]
SAMPLE, COMPUTE = (PHASES.index(name) for name in ("sample", "compute"))
KL = FIGURES.index("approx_kl")


class PPOLearner:
    """Trains one policy from one rollout after the other. `version` counts the rollouts that were learned from."""

    def __init__(self, step: PPOStep, rollout: Rollout, config: Config, seed: int, page: Page | None = None) -> None:
        self.step, self.rollout, self.config = step, rollout, config
        self.generator = torch.Generator().manual_seed(seed)
        self.version = 0
        self.last: Updated | None = None
        self.lr, self.clip = config.learner.lr, config.ppo.clip
        self.epochs_done = self.samples_done = 0  # of the newest rollout; samples are rows that updates were made with
        self._kept: deque[Collected] = deque(maxlen=config.rollout.reuse)  # earlier rollouts, the newest last
        self.update_s = 0.0
        # A rollout may take long: called before each call of the step, and asked after each epoch whether there is time for more.
        self.beat: Callable[[], None] = lambda: None
        self.is_hurried: Callable[[], bool] = lambda: False
        self._enter: Callable[[int], None] = page.enter if page else lambda phase: None
        self.obs_stats = Running(len(step.net.norm.mean)) if step.net.norm is not None else None
        has_scale = config.ppo.normalize_reward
        self.reward_scale = RewardScale(rollout.lanes.num_lanes, config.ppo.gamma) if has_scale else None
        self._explained, self._lag, self._oldest = 0.0, 0.0, 0.0
        self._rho = 1.0
        self._fast = fast_forward(step.act_net)

    @property
    def updates(self) -> int:
        return self.step.num_updates

    def is_due(self) -> bool:
        return self.rollout.available >= self.rollout.due

    def call(self, steps: int, tails: Tail | TailsOf | None = None, version: int | None = None) -> bool:
        """Learns from one rollout if it is complete; `steps` of the run are done.

        `version` is that of the weights as actors know it, if they do not count as this learner does.
        """
        self._enter(SAMPLE)
        rows = self.rollout.take(self.version if version is None else version, tails)
        if rows is None:
            return False
        begun, before = time.perf_counter(), self.updates
        share_done = min(max(steps - self.rollout.num_rows, 0) / self.config.steps, 1.0)
        self.clip = self.config.ppo.clip * (1 - share_done if self.config.ppo.clip_schedule == "linear" else 1.0)
        if self.reward_scale is not None:
            rows.reward = self.reward_scale(rows)
        earlier = [self.prepared(kept) for kept in self._kept]
        fresh = self.prepared(rows)  # last: the figures are its
        batch = _joined([fresh, *earlier]) if earlier else fresh
        self._kept.append(rows)
        self.epochs_done = self.samples_done = 0
        for _ in range(self.config.ppo.epochs):
            kl = self._epoch(batch, share_done)
            self.epochs_done += 1
            self.samples_done += len(batch["log_prob"])
            if 0 < self.config.ppo.target_kl < kl or self.is_hurried():
                break
        self._see(fresh["obs"])
        self.version += 1
        self.update_s = (time.perf_counter() - begun) / (self.updates - before)
        self._lag, self._oldest = float(rows.lag.mean()), float(rows.lag.max())
        check_finite(self.step.state, self.updates, self.lr)
        return True

    def prepared(self, rows: Collected) -> dict[str, Any]:
        """All that the minibatches are cut from, one line per kept row."""
        ppo = self.config.ppo
        if len(rows.final_at[0]):
            rows.next_value[rows.final_at] = self._values(rows.final_obs)
        if self.config.algo == "appo":
            value, log_prob, goal, advantage = self._corrected(rows)
        else:
            advantage = advantages(
                rows.reward, rows.value, rows.next_value, rows.terminated, rows.goes_on, ppo.gamma, ppo.gae_lambda
            )
            value, log_prob, advantage = rows.value[rows.kept], rows.log_prob, advantage[rows.kept]
            goal = value + advantage
        self._explained = explained(value, goal)
        columns = {"log_prob": log_prob, "advantage": advantage, "goal": goal}
        if ppo.value_clip > 0:
            columns["value"] = value
        made: dict[str, Any] = {"obs": as_tensors(rows.obs), "action": torch.from_numpy(rows.action)}
        return made | {name: torch.from_numpy(np.ascontiguousarray(column)) for name, column in columns.items()}

    def _corrected(self, rows: Collected) -> tuple[Array, Array, Array, Array]:
        """Values, log-chances, goals and advantages of the kept rows, by the weights as they are before the first update.

        Only where a lane is cut at an outcome that is in no row yet, the value is that of the actor which holds it.
        """
        ppo = self.config.ppo
        out = self._outputs(rows.obs)
        with torch.inference_mode():
            log_prob: Array = self.step.ppo.actions.log_prob(out[:, :-1], torch.from_numpy(rows.action))[0].numpy()
        value, ratio = np.zeros_like(rows.value), np.ones_like(rows.value)
        value[rows.kept], ratio[rows.kept] = out[:, -1].numpy(), np.exp(log_prob - rows.log_prob)
        self._rho = float(np.minimum(ratio[rows.kept], ppo.rho_bar).mean())
        after = np.array(rows.next_value)
        after[:, :-1] = np.where(rows.goes_on[:, :-1], value[:, 1:], after[:, :-1])
        goal, advantage = vtrace(
            rows.reward,
            value,
            after,
            rows.terminated,
            rows.goes_on,
            ratio,
            ppo.gamma,
            ppo.gae_lambda,
            ppo.rho_bar,
            ppo.c_bar,
        )
        return value[rows.kept], log_prob, goal[rows.kept], advantage[rows.kept]

    def figures(self) -> dict[str, float]:
        """For the log: of the newest call of the newest rollout."""
        if self.last is None:
            return {}
        loss, norm, figures = self.last
        each = figures.mean(0).tolist()
        return {
            "loss": loss.mean().item(),
            "grad_norm": norm.mean().item(),
            "lr": self.lr,
            "clip": self.clip,
            **dict(zip(FIGURES, each, strict=True)),
            "explained_variance": self._explained,
            "epochs": float(self.epochs_done),
            "policy_lag": self._lag,
            "lag": self._oldest,
            **({"rho": self._rho} if self.config.algo == "appo" else {}),
            **self.rollout.figures(),
        }

    def example(self) -> dict[str, Any]:
        """A call's minibatches in the shapes that every call has: to compile by, before any row exists."""
        spec, stack = self.rollout.lanes.spec, self.config.world.stack
        rows = self._rows_per_call()
        frames = (stack,) if stack > 1 else ()
        obs = {f.name: np.zeros((rows, *frames, *f.shape), f.dtype) for f in spec.fields if f.is_observation}
        action = next(field for field in spec.fields if field.name == "action")
        made: dict[str, Any] = {
            "obs": as_tensors(obs),
            "action": torch.from_numpy(np.zeros((rows, *action.shape), action.dtype)),
            **{name: torch.zeros(rows) for name in ("log_prob", "advantage", "goal")},
        }
        if self.config.ppo.value_clip > 0:
            made["value"] = torch.zeros(rows)
        return self._stacked(made)

    def tensors(self) -> dict[str, Tensor]:
        """The statistics, over their own memory."""
        found: dict[str, Tensor] = {}
        if self.obs_stats is not None:
            found |= {f"stats.obs.{name}": tensor for name, tensor in self.obs_stats.tensors().items()}
        if self.reward_scale is not None:
            found |= {f"stats.reward.{name}": tensor for name, tensor in self.reward_scale.tensors().items()}
        return found

    def _epoch(self, batch: Mapping[str, Any], share_done: float) -> float:
        """One pass over all rows in a new order; how far the policy is from the one that acted, over the epoch."""
        order = torch.randperm(len(batch["log_prob"]), generator=self.generator)
        each = []
        for rows in torch.tensor_split(order, max(round(len(order) / self._rows_per_call()), 1)):
            self.beat()
            self._enter(SAMPLE)
            drawn = self._stacked(mapped(batch, partial(_picked, rows=rows)))
            self.lr = lr_at(self.config.learner, self.updates, share_done)
            self._enter(COMPUTE)
            self.last = self.step.update(drawn, self.lr, self.clip)
            each.append(self.last.figures[:, KL])
        return torch.cat(each).mean().item()

    def _rows_per_call(self) -> int:
        return self.rollout.num_rows // self.config.ppo.minibatches * self.step.unrolled

    def _stacked(self, rows: Mapping[str, Any]) -> dict[str, Any]:
        return mapped(rows, lambda tensor: tensor.view(self.step.unrolled, -1, *tensor.shape[1:]))

    def _values(self, obs: Mapping[str, Array]) -> Array:
        values: Array = self._outputs(obs)[:, -1].numpy()
        return values

    def _outputs(self, obs: Mapping[str, Array]) -> Tensor:
        """Of the weights as they are, for rows of any number: a minibatch at a time, which is what fits in memory."""
        most, count = self.rollout.num_rows // self.config.ppo.minibatches, len(next(iter(obs.values())))
        if self._fast is not None:
            pieces = [{name: rows[i : i + most] for name, rows in obs.items()} for i in range(0, count, most)]
            return torch.from_numpy(np.concatenate([self._fast(piece) for piece in pieces]))
        rows = as_tensors(obs)
        with torch.inference_mode():
            parts = [self.step.act_net(_cut(rows, i, i + most)) for i in range(0, count, most)]
        return torch.cat(parts)

    def _see(self, obs: Obs) -> None:
        """Statistics move after the updates: while a rollout is learned from they are those that it was collected with."""
        norm = self.step.net.norm
        if norm is None or self.obs_stats is None:
            return
        with torch.no_grad():
            vector = self.step.net.raw(obs)
            assert isinstance(vector, Tensor)
            self.obs_stats.add(vector)
            norm.mean.copy_(self.obs_stats.mean)
            norm.var.copy_(self.obs_stats.var)


def _picked(tensor: Tensor, rows: Tensor) -> Tensor:
    return tensor.index_select(0, rows)


def _joined(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """All rows of several batches, one after the other."""
    first = parts[0]
    return {
        name: _joined([part[name] for part in parts])
        if isinstance(first[name], Mapping)
        else torch.cat([part[name] for part in parts])
        for name in first
    }


def _cut(obs: Obs, first: int, end: int) -> Obs:
    return mapped(obs, lambda tensor: tensor[first:end]) if isinstance(obs, Mapping) else obs[first:end]
