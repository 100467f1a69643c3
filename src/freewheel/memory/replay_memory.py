"""Lessons from a replay: batches that are drawn from all rows, again and again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from freewheel.contracts import Batch, Draws
from freewheel.memory.nested import nth, rows_at
from freewheel.memory.replay import Batch as ReplayBatch
from freewheel.memory.replay import Replay

USED = ("obs", "action", "next_obs", "reward", "discount", "weight")


@dataclass(slots=True)
class Drawn:
    """A draw from the replay: what each call of the update takes of it, and its random inputs."""

    batch: ReplayBatch
    given: list[Batch]
    draws: list[Draws]
    ahead: Any = None  # what was begun with it before its turn: on its way to a device, or with the target process


class ReplayMemory:
    """A lesson is `updates_per_call` updates; each draw serves `num_groups` calls of an update that makes `unrolled` of them.

    `draws(rows, generator)` makes the random inputs of one update.
    """

    file, is_always_saved = "replay.bin", False
    has_fixed_size = True  # all batches have the same number of rows

    def __init__(
        self,
        replay: Replay,
        draws: Callable[[int, torch.Generator], dict[str, Tensor]],
        *,
        batch_size: int,
        updates_per_call: int,
        unrolled: int,
        seed: int,
        beta: tuple[float, float],
        first_action: int = 0,
        columns: Sequence[str] = (),
    ) -> None:
        self.replay, self.batch_size, self.unrolled = replay, batch_size, unrolled
        self.generator = torch.Generator().manual_seed(seed)
        self.num_groups = replay.batch_size // (batch_size * unrolled)
        self.num_samples = updates_per_call * batch_size
        self.updates_per_call = updates_per_call
        # Of a draw now and then: rows of its lane since it was written, and the oldest policy that acted in it.
        self.sample_age, self.oldest_version = 0.0, 0
        # What looks wrong about the first draw, "" if nothing does; None before it.
        self.warning: str | None = None
        self._make_draws, self._has_draws = draws, bool(draws(1, torch.Generator()))
        self._beta, self._first_action = beta, first_action
        self._used = (*USED, *columns)
        self._depth = 0
        self._begin_ahead: Callable[[Drawn], None] = _nothing
        self._waiting: deque[Drawn] = deque()
        self._views: dict[int, tuple[dict[str, Any], list[Batch]]] = {}
        self._looks = True

    @property
    def has_priorities(self) -> bool:
        return self.replay.prioritized

    def draw_ahead(self, depth: int, begin: Callable[[Drawn], None]) -> None:
        """From now on so many draws are made before their turn, and something is begun with each."""
        self._depth, self._begin_ahead = depth, begin

    def lesson(self, share_done: float, version: int, bootstraps: Any = None) -> ReplayLesson:
        first, last = self._beta
        return ReplayLesson(self, first + share_done * (last - first))

    def next(self, beta: float) -> Drawn:
        """What is trained on next."""
        while len(self._waiting) <= self._depth:
            batch = self.replay.sample(beta)
            if self._looks:
                self._look(batch)
            drawn = Drawn(batch, self._arranged(self.replay.views(batch)), self._draws(self.generator))
            self._begin_ahead(drawn)
            self._waiting.append(drawn)
        return self._waiting.popleft()

    def example(self) -> tuple[Batch, Draws]:
        batch = self._arranged(self.replay.example())[0]
        if batch["action"].dtype not in (torch.float32, torch.float64):
            batch["action"].fill_(self._first_action)
        return batch, self._draws(torch.Generator())[0]

    def metrics(self) -> dict[str, float]:
        self._looks = True
        return {}

    def totals(self) -> dict[str, int]:
        """Counted by the replay since the process began."""
        found = self.replay.stats()
        return {name: found[name] for name in ("redraws", "stale_priorities")}

    def skip(self) -> None:
        """Rows may be sampled by whoever comes: there is nothing to leave out."""

    def lost_on_resume(self) -> list[str]:
        return []

    def state(self) -> dict[str, Any]:
        return {"replay": self.replay.state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.replay.set_state(state["replay"])

    def close(self) -> None:
        self.replay.close()

    def _look(self, batch: ReplayBatch) -> None:
        self._looks = False
        if self.warning is None:
            self.warning = all_alike(batch)
        self.sample_age = batch.age.float().mean().item()
        self.oldest_version = int(batch.version.min())

    def _arranged(self, views: dict[str, Any]) -> list[Batch]:
        """What each call of the update takes of a draw, stacked if it makes several. A buffer's views stay the same: done once for each."""
        kept = self._views.get(id(views))
        if kept is not None and kept[0] is views:
            return kept[1]
        stacked = {name: _grouped(views[name], self.num_groups * self.unrolled) for name in self._used}
        found: list[Batch] = [
            nth(stacked, i) if self.unrolled == 1 else rows_at(stacked, i * self.unrolled, self.unrolled)
            for i in range(self.num_groups)
        ]
        self._views[id(views)] = views, found
        return found

    def _draws(self, generator: torch.Generator) -> list[Draws]:
        if not self._has_draws:
            return [{}] * self.num_groups
        found: list[Draws] = []
        for _ in range(self.num_groups):
            each = [self._make_draws(self.batch_size, generator) for _ in range(self.unrolled)]
            one = each[0] if self.unrolled == 1 else {name: torch.stack([d[name] for d in each]) for name in each[0]}
            found.append(one)
        return found


class ReplayLesson:
    """Some draws, with these exponents of the importance weights."""

    rows = ()

    def __init__(self, memory: ReplayMemory, beta: float) -> None:
        self._memory, self._beta = memory, beta
        self.num_versions = memory.updates_per_call  # versions of the weights that it makes

    def begin(self, prepared: Sequence[Mapping[str, Any]]) -> None:
        """Rows are learned from as they are."""

    def batches(self) -> Iterator[Drawn]:
        memory, updates = self._memory, 0
        while updates < memory.updates_per_call:
            yield memory.next(self._beta)
            updates += memory.num_groups * memory.unrolled

    def learned(self, drawn: Drawn, outcomes: Sequence[Any]) -> None:
        if self._memory.replay.prioritized:
            self._memory.replay.update_errors(drawn.batch, [outcome.priorities for outcome in outcomes])


def all_alike(batch: ReplayBatch) -> str:
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


def _nothing(drawn: Drawn) -> None:
    """Nothing is begun with a draw before its turn."""
