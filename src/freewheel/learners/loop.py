"""The learner's side: which updates are due, and one after the other draw, update, set priorities."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from freewheel.config import Config
from freewheel.errors import Diverged
from freewheel.learners.schedule import lr_at
from freewheel.learners.step import Step, Updated
from freewheel.memory.replay import Batch, Replay

USED = ("obs", "action", "next_obs", "reward", "discount", "weight")
# Bad updates in a row after which nothing good can be hoped for.
MOST_BAD = 10
LEAST_PRIORITY = 1e-6


class Learner:
    """Trains one policy from one replay, `updates_per_call` updates at a time, at the ratio of the settings."""

    def __init__(self, step: Step, replay: Replay, config: Config, seed: int) -> None:
        self.step, self.replay, self.config = step, replay, config
        self.generator = torch.Generator().manual_seed(seed)
        self.last: Updated | None = None
        self.lr = config.learner.lr
        # What looks wrong about the first batch, "" if nothing does; None before it.
        self.doubt: str | None = None
        # Where the ratio is counted from: a run whose replay is empty again warms up again, without a burst after it.
        self.from_step, self.from_updates = config.replay.warmup_rows, 0

    @property
    def updates(self) -> int:
        return self.step.num_updates

    def due(self, steps: int) -> int:
        """Updates that are due after so many steps: ratio samples per step since the warm-up, whole calls only."""
        learner = self.config.learner
        trained = max(steps - self.from_step, 0)
        calls = int(trained * learner.ratio / (learner.batch_size * learner.updates_per_call))
        return calls * learner.updates_per_call - (self.updates - self.from_updates)

    def warm_up_again(self, steps: int) -> None:
        self.from_step, self.from_updates = steps + self.config.replay.warmup_rows, self.updates

    def call(self, steps: int) -> int:
        """One call's updates; `steps` of the run are done."""
        share_done = min(steps / self.config.steps, 1.0)
        replay, step = self.config.replay, self.step
        beta = replay.beta + share_done * (replay.beta_end - replay.beta)
        for _ in range(self.config.learner.updates_per_call // step.unrolled):
            batch = self.replay.sample(beta)
            if self.doubt is None:
                self.doubt = doubtful(batch)
            self.lr = lr_at(self.config.learner, step.num_updates, share_done)
            self.last = step.update(self._arranged(batch), self._draws(), self.lr)
            if self.replay.prioritized:
                self._set_priorities(batch, self.last)
        self._check()
        return self.config.learner.updates_per_call

    def figures(self) -> dict[str, float]:
        """For the log: of the newest update."""
        if self.last is None:
            return {}
        loss, norm, outcome = self.last
        return {
            "loss": loss.mean().item(),
            "grad_norm": norm.mean().item(),
            "lr": self.lr,
            **outcome.figures(),
        }

    def _arranged(self, batch: Batch) -> dict[str, Any]:
        tensors = {name: batch[name] for name in USED}
        if self.step.unrolled == 1:
            return tensors
        return {name: _grouped(tensor, self.step.unrolled) for name, tensor in tensors.items()}

    def _draws(self) -> dict[str, Tensor]:
        rows = self.config.learner.batch_size
        each = [self.step.algo.draws(rows, self.generator) for _ in range(self.step.unrolled)]
        if self.step.unrolled == 1:
            return each[0]
        return {name: torch.stack([draws[name] for draws in each]) for name in each[0]}

    def _set_priorities(self, batch: Batch, done: Updated) -> None:
        # A row that was predicted exactly, or whose error is no number, keeps a small chance.
        priorities = torch.nan_to_num(done.outcome.priorities, 0.0, 0.0, 0.0) + LEAST_PRIORITY
        self.replay.update_priorities(batch, priorities)

    def _check(self) -> None:
        bad = int(self.step.state.bad_in_row)
        if bad >= MOST_BAD:
            raise Diverged(
                f"the loss or its gradient was not finite in {bad} updates in a row (update {self.updates:,}, learning rate "
                f"{self.lr:.2g}). The weights are those before them. Lower learner.lr, set learner.clip_norm, or bound rewards "
                "with world.reward_scale or world.reward_clip."
            )


def doubtful(batch: Batch) -> str:
    """What a learner should not see: rows that are all alike teach nothing."""
    tensors = batch.obs if isinstance(batch.obs, dict) else {"obs": batch.obs}
    alike = [name for name, rows in tensors.items() if len(rows) > 1 and bool((rows == rows[:1]).all())]
    if len(alike) < len(tensors):
        return ""
    value = "0" if not any(bool(rows.any()) for rows in tensors.values()) else "the same"
    return f"all {len(batch.reward)} observations of the first batch are {value}: the env shows nothing that could be learned from"


def _grouped(value: Any, groups: int) -> Any:
    if isinstance(value, dict):
        return {name: _grouped(part, groups) for name, part in value.items()}
    return value.unflatten(0, (groups, -1))
