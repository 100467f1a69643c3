"""The learner's side: which updates are due, and one after the other draw, update, set priorities."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from freewheel.config import Config
from freewheel.learners.adam import check_finite
from freewheel.learners.ahead import DEPTH, Ahead
from freewheel.learners.device import use_of
from freewheel.learners.nested import Nested, nth, rows_at
from freewheel.learners.ratio import Ratio
from freewheel.learners.schedule import lr_at
from freewheel.learners.step import Step, Updated, seen_later
from freewheel.learners.transfer import Moving, Transfer
from freewheel.memory.replay import Batch, Replay
from freewheel.report.ledger import Page
from freewheel.report.phases import PHASES

SAMPLE, TRANSFER, COMPUTE, TEAM, PRIORITIES = (
    PHASES.index(name) for name in ("sample", "transfer", "compute", "wait_team", "priorities")
)
USED = ("obs", "action", "next_obs", "reward", "discount", "weight")


@dataclass(slots=True)
class Drawn:
    """A batch; what each call of the step takes of it, and its draws; its number with the process ahead."""

    batch: Batch
    given: list[dict[str, Any]]
    draws: list[dict[str, Tensor]]
    number: int = 0
    moving: Moving | None = None  # the same on its way to the device


class Learner:
    """Trains one policy from one replay, `updates_per_call` updates at a time, at the ratio of the settings."""

    def __init__(self, step: Step, replay: Replay, config: Config, seed: int, page: Page | None = None) -> None:
        self.step, self.replay, self.config = step, replay, config
        self._enter: Callable[[int], None] = page.enter if page else lambda phase: None
        self.generator = torch.Generator().manual_seed(seed)
        self.last: Updated | None = None
        self.lr = config.learner.lr
        # What looks wrong about the first batch, "" if nothing does; None before it.
        self.doubt: str | None = None
        # A run whose replay is empty again warms up again, without a burst after it.
        self.ratio = Ratio.of(config)
        # Of a batch now and then: rows of its lane since it was written, and the oldest policy that acted in it.
        self.sample_age, self.oldest_version = 0.0, 0
        self.update_s = 0.0  # of one update, newest call
        self._looks = True
        self.ahead: Ahead | None = None
        self.ahead_share = 0.0  # of the newest calls, those whose target values were there
        self._moves_seen = step.num_moves
        self._drawn_before: deque[Drawn] = deque()
        self._kept: dict[int, tuple[dict[str, Any], list[dict[str, Any]]]] = {}
        # Calls of the step that one draw from the replay serves.
        self.num_groups = replay.batch_size // (config.learner.batch_size * step.unrolled)
        # In turn a batch that was drawn before its time would be missing from a checkpoint.
        # Nor for a team, which moves each worker's rows to a device of its own.
        is_alone = config.learner.workers < 2
        is_ahead_on_device = step.device.type == "cuda" and config.runtime == "local" and is_alone
        self._transfer = Transfer(step.device) if is_ahead_on_device else None
        self._has_draws = bool(step.algo.draws(1, torch.Generator()))

    @property
    def updates(self) -> int:
        return self.step.num_updates

    def due(self, steps: int) -> int:
        """Updates that are due after so many steps: ratio samples per step since the warm-up, whole calls only."""
        return self.ratio.due(steps, self.updates)

    def warm_up_again(self, steps: int) -> None:
        self.ratio.from_step, self.ratio.from_updates = steps + self.config.replay.warmup_rows, self.updates

    def call(self, steps: int) -> int:
        """One call's updates; `steps` of the run are done."""
        share_done = min(steps / self.config.steps, 1.0)
        replay, step = self.config.replay, self.step
        beta = replay.beta + share_done * (replay.beta_end - replay.beta)
        enter, begun = self._enter, time.perf_counter()
        updates = 0
        while updates < self.config.learner.updates_per_call:
            enter(SAMPLE)
            self._move_ahead()
            drawn = self._next(beta)
            given = drawn.given
            if self._transfer is not None and drawn.moving is not None:
                enter(TRANSFER)
                given = self._transfer.finish(drawn.moving)
            enter(COMPUTE)
            each = []
            for i in range(self.num_groups):
                self.lr = lr_at(self.config.learner, step.num_updates, share_done)
                each.append(step.update(given[i], drawn.draws[i], self.lr, self._later_of(drawn, i)))
            self.last = each[-1]
            updates += self.num_groups * step.unrolled
            if self.replay.prioritized:
                enter(PRIORITIES)
                self.replay.update_errors(drawn.batch, [done.outcome.priorities for done in each])
        self.update_s = (time.perf_counter() - begun) / self.config.learner.updates_per_call
        check_finite(step.state, self.updates, self.lr)
        return self.config.learner.updates_per_call

    def mark_team(self, is_waiting: bool) -> None:
        """In the midst of an update: from now on it waits for the gradients of others, or no longer."""
        self._enter(TEAM if is_waiting else COMPUTE)

    def go_ahead(self, ahead: Ahead) -> None:
        """From now on another process is shown the batches before they are trained on."""
        self.ahead = ahead
        ahead.move(self.step.state.target)

    def _next(self, beta: float) -> Drawn:
        """What is trained on next. With a process ahead, those after it are drawn and shown to it first; with a CUDA device,
        the one after it is on its way there."""
        while len(self._drawn_before) <= (DEPTH if self.ahead else int(self._transfer is not None)):
            batch = self.replay.sample(beta)
            if self._looks:
                self._look(batch)
            given, draws = self._arranged(self.replay.views(batch)), self._drawn(self.generator)
            drawn = Drawn(batch, given, draws)
            if self.ahead:
                drawn.number = self.ahead.show([seen_later(*one) for one in zip(given, draws, strict=True)])
            if self._transfer is not None:
                drawn.moving = self._transfer.start(given)
            self._drawn_before.append(drawn)
        return self._drawn_before.popleft()

    def _move_ahead(self) -> None:
        """Before a batch is shown, which wakes the process ahead: it works with the target as it is from then on."""
        if self.ahead is not None and self._moves_seen != self.step.num_moves:
            self._moves_seen = self.step.num_moves
            self.ahead.move(self.step.state.target)

    def _later_of(self, drawn: Drawn, group: int) -> Nested | None:
        """What the process ahead has found out, if it has. A target that moved within the batch is not its own."""
        if self.ahead is None or self._moves_seen != self.step.num_moves:
            return None
        found = self.ahead.take(drawn.number, group)
        self.ahead_share += 0.01 * ((found is not None) - self.ahead_share)
        return found

    def take_doubt(self) -> str:
        """What looked wrong about the first batch, once."""
        doubt, self.doubt = self.doubt or "", self.doubt and ""
        return doubt

    def take_notes(self) -> list[str]:
        """What the user should read about the updates, once."""
        notes, self.step.notes = self.step.notes, []
        return notes

    def figures(self) -> dict[str, float]:
        """For the log: of the newest update."""
        self._looks = True
        if self.last is None:
            return {}
        loss, norm, outcome = self.last
        return {
            "loss": loss.mean().item(),
            "grad_norm": norm.mean().item(),
            "lr": self.lr,
            **outcome.figures(),
            **use_of(self.step.device),
            **({"ahead_share": self.ahead_share} if self.ahead else {}),
        }

    def _look(self, batch: Batch) -> None:
        self._looks = False
        if self.doubt is None:
            self.doubt = doubtful(batch)
        self.sample_age = batch.age.float().mean().item()
        self.oldest_version = int(batch.version.min())

    def example(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """A batch and draws of the shapes, dtypes and strides that every update is given: to compile by, before any row exists."""
        batch = self._arranged(self.replay.example())[0]
        batch["action"].fill_(self.step.algo.first_action)
        return batch, self._drawn(torch.Generator())[0]

    def _arranged(self, views: dict[str, Any]) -> list[dict[str, Any]]:
        """What each call of the step takes of a batch, stacked if it makes several updates.

        A buffer's views stay the same, so it is done once for each.
        """
        kept = self._kept.get(id(views))
        if kept is not None and kept[0] is views:
            return kept[1]
        updates = self.num_groups * self.step.unrolled
        stacked = {name: _grouped(views[name], updates) for name in USED}
        found = [
            nth(stacked, i) if self.step.unrolled == 1 else rows_at(stacked, i * self.step.unrolled, self.step.unrolled)
            for i in range(self.num_groups)
        ]
        self._kept[id(views)] = views, found
        return found

    def _drawn(self, generator: torch.Generator) -> list[dict[str, Tensor]]:
        if not self._has_draws:
            return [{}] * self.num_groups
        rows, found = self.config.learner.batch_size, []
        for _ in range(self.num_groups):
            each = [self.step.algo.draws(rows, generator) for _ in range(self.step.unrolled)]
            one_by_one = self.step.unrolled == 1
            found.append(
                each[0] if one_by_one else {name: torch.stack([one[name] for one in each]) for name in each[0]}
            )
        return found


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
    return value.view(groups, -1, *value.shape[1:])
