"""Lessons from rollouts: each is learned from in epochs of minibatches, then thrown away."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from freewheel.contracts import Batch, Draws
from freewheel.memory.bootstraps import Bootstraps
from freewheel.memory.nested import as_tensors, mapped
from freewheel.memory.rollout import Collected, Rollout

NO_DRAWS: list[Draws] = [{}]


@dataclass(slots=True)
class Minibatches:
    """Those of one call of the update."""

    given: list[Batch]
    draws: list[Draws]
    ahead: Any = None


class RolloutMemory:
    """A lesson is `epochs` passes over a rollout and the `reuse` newest before it, in `minibatches` of equal size each.

    `columns` names what `Algo.prepare` gives beside obs and action, a number for each row. `finish` is given a minibatch before
    it is split any further: what looks at all its rows together belongs there. Epochs end early once the policy has moved by
    `target_kl`, by the `divergence` of the updates' outcomes.
    """

    file, is_always_saved = "rollout.bin", True
    has_priorities = False
    sample_age, oldest_version = 0.0, 0
    warning = ""

    def __init__(
        self,
        rollout: Rollout,
        *,
        epochs: int,
        minibatches: int,
        unrolled: int,
        seed: int,
        columns: Sequence[str],
        stack: int = 1,
        reuse: int = 0,
        target_kl: float = 0.0,
        first_action: Any = 0,
        finish: Callable[[dict[str, Any]], dict[str, Any]] = lambda minibatch: minibatch,
    ) -> None:
        self.rollout, self.epochs, self.unrolled, self.finish = rollout, epochs, unrolled, finish
        self.generator = torch.Generator().manual_seed(seed)
        self.target_kl, self.is_hurried = target_kl, _never
        self.rows_per_minibatch = rollout.num_rows // minibatches
        self.num_samples = self.num_epochs = 0  # of the newest lesson
        self._columns, self._stack, self._first_action = columns, stack, first_action
        self._kept: deque[Collected] = deque(maxlen=reuse)  # earlier rollouts, the newest last
        self._lag = self._oldest = 0.0
        # All minibatches have the same number of rows.
        self.has_fixed_size = not rollout.by_episodes and not reuse

    def lesson(self, share_done: float, version: int, bootstraps: Bootstraps | None) -> RolloutLesson | None:
        """The next rollout, if it is complete. `version` is that of the weights as actors know it."""
        rows = self.rollout.take(version, None if bootstraps is None else bootstraps.of)
        if rows is None:
            return None
        lesson = RolloutLesson(self, [rows, *self._kept])
        self._kept.append(rows)
        self._lag, self._oldest = float(rows.lag.mean()), float(rows.lag.max())
        self.num_samples = self.num_epochs = 0
        return lesson

    def example(self) -> tuple[Batch, Draws]:
        spec, rows = self.rollout.lanes.spec, self.rows_per_minibatch * self.unrolled
        frames = (self._stack,) if self._stack > 1 else ()
        obs = {f.name: np.zeros((rows, *frames, *f.shape), f.dtype) for f in spec.fields if f.is_observation}
        action = next(field for field in spec.fields if field.name == "action")
        made: dict[str, Any] = {
            "obs": as_tensors(obs),
            "action": torch.from_numpy(np.full((rows, *action.shape), self._first_action, action.dtype)),
            **{name: torch.zeros(rows) for name in self._columns},
        }
        return self.finish(self.stacked(made)), {}

    def metrics(self) -> dict[str, float]:
        return {
            "epochs": float(self.num_epochs),
            "policy_lag": self._lag,
            "lag": self._oldest,
            **self.rollout.metrics(),
        }

    def totals(self) -> dict[str, int]:
        return {}

    def skip(self) -> None:
        self.rollout.skip()

    def lost_on_resume(self) -> list[str]:
        """What a checkpoint has not."""
        return ["rollouts that were kept to be learned from again are collected anew"] if self._kept.maxlen else []

    def state(self) -> dict[str, Any]:
        return {"rollout": self.rollout.state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.rollout.set_state(state["rollout"])

    def close(self) -> None:
        """Nothing to do: rows are read where they lie."""

    def stacked(self, rows: Mapping[str, Any]) -> dict[str, Any]:
        """As the update takes the minibatches of one call."""
        if self.unrolled == 1:
            return dict(rows)
        return mapped(rows, lambda tensor: tensor.view(self.unrolled, -1, *tensor.shape[1:]))


class RolloutLesson:
    """One rollout and those that are learned from again beside it, the newest first."""

    num_versions = 1

    def __init__(self, memory: RolloutMemory, rows: list[Collected]) -> None:
        self._memory, self.rows = memory, rows
        self._batch: dict[str, Any] = {}
        self._moved: list[Tensor] = []

    def begin(self, prepared: Sequence[Mapping[str, Any]]) -> None:
        self._batch = _joined(prepared) if len(prepared) > 1 else dict(prepared[0])

    def batches(self) -> Iterator[Minibatches]:
        memory, count = self._memory, len(self.rows[0].lag) if len(self.rows) == 1 else self._count()
        calls = max(round(count / (memory.rows_per_minibatch * memory.unrolled)), 1)
        for _ in range(memory.epochs):
            self._moved = []
            order = torch.randperm(count, generator=memory.generator)
            for rows in torch.tensor_split(order, calls):
                drawn = mapped(self._batch, partial(_picked, rows=rows))
                yield Minibatches([memory.finish(memory.stacked(drawn))], NO_DRAWS)
            memory.num_epochs += 1
            memory.num_samples += count
            if memory.is_hurried() or (memory.target_kl and memory.target_kl < torch.cat(self._moved).mean().item()):
                return

    def learned(self, batch: Minibatches, outcomes: Sequence[Any]) -> None:
        if self._memory.target_kl:
            self._moved += [outcome.divergence for outcome in outcomes]

    def _count(self) -> int:
        return sum(len(rows.lag) for rows in self.rows)


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


def _never() -> bool:
    return False
