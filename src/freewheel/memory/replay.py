"""Replay: lanes sampled many times, as batches of torch tensors; lessons are some draws each."""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from freewheel import _core
from freewheel.contracts import Batch, Draws
from freewheel.errors import ConfigError
from freewheel.memory.dials import Dials
from freewheel.memory.first_look import FirstLook
from freewheel.memory.lanes import Lanes
from freewheel.memory.nested import Drawn, mapped, nth, rows_at
from freewheel.memory.replay_batch import BatchLayout, ReplayBatch

LEAST_PRIORITY = 1e-6  # a row that was predicted exactly keeps a small chance
USED = ("obs", "action", "next_obs", "reward", "discount", "weight")


class Replay:
    """Draws batches from lanes, uniformly or by priority, with n-step returns and frame stacks put together on the way.

    One learner's view: any number of them may read the same lanes, while any process writes them. Several threads may use one
    view: they take turns. Batches lie in buffers that are filled again only when a batch and every tensor made from it are gone.

    A batch serves `updates` updates with `batch_size` rows each, one after the other: each is a sample of its own with weights of its
    own. `prefetch` batches are made ready by a thread of their own; 0 makes each when it is asked for, which is what a
    repeatable run wants. On a CUDA device the buffers are pinned and `batch.to(device)` copies without waiting.
    """

    def __init__(
        self,
        lanes: Lanes,
        batch_size: int,
        *,
        updates: int = 1,
        n_step: int = 1,
        gamma: float = 0.99,
        stack: int = 1,
        pad: Literal["first", "zero"] = "first",
        prioritized: bool = False,
        alpha: float = 0.6,
        seed: int = 0,
        prefetch: int = 0,
        timeout_s: float = 60.0,
    ) -> None:
        _check(batch_size, updates, n_step, gamma, stack, pad, alpha, prefetch)
        self.lanes = lanes
        self.batch_size, self.updates, self.prefetch = batch_size, updates, prefetch
        self.timeout_s = timeout_s
        self._layout = BatchLayout(lanes.spec.fields, self.num_rows, stack, n_step)
        self._core = _core.Sampler.make(
            lanes.core,
            batch_size,
            n_step,
            gamma,
            stack,
            pad == "zero",
            alpha,
            prioritized,
            seed % 2**64,
            prefetch,
            updates,
        )
        self._core.describe(self._layout.described())
        self._views: dict[int, dict[str, Any]] = {}
        for _ in range(prefetch + 1):
            self._add_buffer()

    @property
    def num_rows(self) -> int:
        """Of a whole batch."""
        return self.batch_size * self.updates

    def sample(self, beta: float = 0.4) -> ReplayBatch:
        """The next batch. `beta` is the exponent of the importance weights; uniform batches have weight 1."""
        lease = self._core.take(beta, self.timeout_s, self._layout.num_bytes)
        while lease is None:  # all buffers are in use
            self._add_buffer()
            lease = self._core.take(beta, self.timeout_s, self._layout.num_bytes)
        return ReplayBatch(lease, self._layout)

    def example(self) -> dict[str, Any]:
        """Zeros in the shapes, dtypes and strides of every batch that this replay gives; needs no rows."""
        return self._layout.tensors(np.zeros(self._layout.num_bytes, np.uint8))

    def views(self, batch: ReplayBatch) -> dict[str, Any]:
        """All names of a batch as tensors that were made once for its buffer: always the same dict for the same buffer.

        Cheaper than the batch's own, but only good as long as the batch itself is held.
        """
        return self._views[batch._lease.address]

    def update_priorities(self, batch: ReplayBatch, priorities: torch.Tensor | np.ndarray[Any, Any]) -> None:
        """New priorities for a batch's rows. Rows that were overwritten meanwhile are left out and counted."""
        if isinstance(priorities, torch.Tensor):
            priorities = priorities.detach().cpu().numpy()
        self._core.update(batch._lease, priorities)

    def update_errors(self, batch: ReplayBatch, pieces: Sequence[torch.Tensor]) -> None:
        """Priorities from errors >= 0 in equal pieces, which together are the batch; NaN counts as 0.

        The same as joining and cleaning them first, which costs more than all the rest.
        """
        held = [piece if _is_plain(piece) else piece.detach().float().cpu().contiguous() for piece in pieces]
        if any(len(piece) * len(held) != self.num_rows for piece in held):
            raise ConfigError(f"errors of {[len(piece) for piece in held]} rows are not a batch of {self.num_rows}.")
        self._core.update_pieces(batch._lease, [piece.data_ptr() for piece in held], LEAST_PRIORITY)

    @property
    def prioritized(self) -> bool:
        """Batches are drawn by priority; may be changed at any time."""
        return self._core.prioritized

    @prioritized.setter
    def prioritized(self, on: bool) -> None:
        self._core.prioritized = on

    def keep_ready(self, count: int) -> None:
        """Of the `prefetch` batches keeps so many ready from now on, at least one."""
        self._core.keep_ready(count)

    def stats(self) -> dict[str, int]:
        """Batches made; rows drawn again because a writer overtook the copy; draws that were no start; late priorities."""
        return dict(zip(("batches", "redraws", "rejected", "stale_priorities"), self._core.stats(), strict=True))

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps beside the rows, JSON-able. With prefetch without the random state: its thread has drawn ahead."""
        found = {"max_priority": self.lanes.core.max_priority}
        return found if self.prefetch else {"random": self._core.random_state(), **found}

    def set_state(self, state: Mapping[str, Any]) -> None:
        priority = float(state["max_priority"])
        if not 0 < priority < math.inf:
            raise ValueError(f"max_priority={priority} must be above 0 and finite")
        if "random" in state:
            self._core.set_random_state(state["random"])
        self.lanes.core.raise_max_priority(priority)

    def close(self) -> None:
        """Stops the prefetching. Batches already handed out stay good."""
        self._core.stop()

    def _add_buffer(self) -> None:
        # 64 bytes more, to begin on a cache line: torch promises 64 only on some builds.
        block = torch.zeros(self._layout.num_bytes + 64, dtype=torch.uint8, pin_memory=torch.cuda.is_available())
        address = (block.data_ptr() + 63) // 64 * 64
        self._views[address] = self._layout.tensors(block.numpy()[address - block.data_ptr() :])
        self._core.add_buffer(block, address, self._layout.offsets, self._layout.shares_frames)


class ReplayMemory:
    """A lesson is `updates_per_call` updates; each draw serves `num_groups` calls of an update that makes `unrolled` of them.

    `draws(rows, generator)` makes the random inputs of one update. At most `most_ahead` draws are made before their turn: with priorities,
    each is that much older when it is trained on.
    """

    file, is_always_saved = "replay.bin", False
    has_fixed_size = True  # all batches have the same number of rows
    dials: Dials | None = None  # the dial `prioritized` takes the place of the replay's own choice

    def __init__(
        self,
        replay: Replay,
        draws: Callable[[int, torch.Generator], dict[str, Tensor]],
        *,
        updates_per_call: int,
        unrolled: int,
        seed: int,
        beta: tuple[float, float],
        first_action: int = 0,
        columns: Sequence[str] = (),
        most_ahead: int = sys.maxsize,
    ) -> None:
        self.replay, self.batch_size, self.unrolled = replay, replay.batch_size, unrolled
        self.generator = torch.Generator().manual_seed(seed)
        self.num_groups = replay.updates // unrolled
        self.num_samples = 0  # of the newest lesson
        self.updates_per_call = updates_per_call
        # Of a draw now and then: rows of its lane since it was written, and the oldest policy that acted in it.
        self.sample_age, self.oldest_version = 0.0, 0
        # What looks wrong about the first rows, "" if nothing; None before the first draw.
        self.warning: str | None = None
        self._first_look = FirstLook(replay.lanes)
        self._make_draws, self._has_draws = draws, bool(draws(1, torch.Generator()))
        self._beta, self._first_action = beta, first_action
        self._used = (*USED, *columns)
        self.is_hurried: Callable[[], bool] = lambda: False  # a lesson then ends after its next draw
        self._prioritized, self._dial_version = replay.prioritized, -1
        self._depth, self._most_ahead = 0, most_ahead
        self._begin_ahead: Callable[[Drawn], None] | None = None
        self._waiting: deque[Drawn] = deque()
        self._given: dict[int, list[Batch]] = {}  # of each of the replay's buffers
        self._looks = True
        self._posts_late = 0

    @property
    def has_priorities(self) -> bool:
        return self.replay.prioritized

    def draw_ahead(self, depth: int, begin: Callable[[Drawn], None]) -> None:
        """From now on so many draws are made before their turn, and something is begun with each."""
        self._depth, self._begin_ahead = min(depth, self._most_ahead - min(self.replay.prefetch, 1)), begin
        self.replay.keep_ready(self._most_ahead - self._depth)

    def lesson(self, share_done: float, version: int, bootstraps: Any = None) -> ReplayLesson:
        if self.dials is not None and self.dials.version != self._dial_version:
            self._dial_version, asked = self.dials.version, self.dials.value("prioritized")
            self.replay.prioritized = self._prioritized if asked is None else asked == 1
        first, last = self._beta
        return ReplayLesson(self, first + share_done * (last - first))

    def next(self, beta: float) -> Drawn:
        """What is trained on next."""
        while len(self._waiting) <= self._depth:
            batch = self.replay.sample(beta)
            views = self.replay.views(batch)
            if self._looks:
                self._look(views)
            given = self._given.get(id(views))
            if given is None:
                given = self._given[id(views)] = self._given_of(views)
            drawn = Drawn(given, self._draws(self.generator), batch)
            if self._begin_ahead is not None:
                self._begin_ahead(drawn)
            self._waiting.append(drawn)
        drawn = self._waiting.popleft()
        self._posts_late = drawn.source.posts_since
        return drawn

    def example(self) -> tuple[Batch, Draws]:
        batch = self._given_of(self.replay.example())[0]
        if batch["action"].dtype not in (torch.float32, torch.float64):
            batch["action"].fill_(self._first_action)
        return batch, self._draws(torch.Generator())[0]

    def metrics(self) -> dict[str, float]:
        self._looks = True
        if not self.has_priorities:
            return {}
        # Of the last update of the newest draw: the updates before it whose errors the draw could not know of.
        updates = self.replay.updates
        return {"priority_lag": float(self._posts_late * updates + updates - 1)}

    def totals(self) -> dict[str, int]:
        """Counted by the replay since the process began."""
        found = self.replay.stats()
        return {name: found[name] for name in ("redraws", "stale_priorities")}

    def skip(self) -> None:
        """Any learner may sample any row: there is nothing to leave out."""

    def lost_on_resume(self) -> list[str]:
        return []

    def state(self) -> dict[str, Any]:
        return {"replay": self.replay.state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.replay.set_state(state["replay"])

    def close(self) -> None:
        self.replay.close()

    def _look(self, views: dict[str, Any]) -> None:
        self._looks = False
        self.warning = self.warning or self._first_look(lambda: views["obs"])
        self.sample_age = views["age"].float().mean().item()
        self.oldest_version = int(views["version"].min())

    def _given_of(self, views: dict[str, Any]) -> list[Batch]:
        """What each call of the update takes of a draw, stacked if it makes several."""
        updates, unrolled = self.replay.updates, self.unrolled
        used = {name: views[name] for name in self._used}
        each = mapped(used, lambda tensor: tensor.view(updates, -1, *tensor.shape[1:]))
        if unrolled == 1:
            return [nth(each, i) for i in range(updates)]
        return [rows_at(each, i, unrolled) for i in range(0, updates, unrolled)]

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
        self.num_versions = 0  # updates so far, each of which is a version of the weights

    def batches(self, prepared: Sequence[Mapping[str, Any]] = ()) -> Iterator[Drawn]:
        memory = self._memory
        while self.num_versions < memory.updates_per_call and not (self.num_versions and memory.is_hurried()):
            yield memory.next(self._beta)
            self.num_versions += memory.replay.updates
            memory.num_samples = self.num_versions * memory.batch_size

    def learned(self, drawn: Drawn, outcomes: Sequence[Any]) -> None:
        if self._memory.replay.prioritized:
            self._memory.replay.update_errors(drawn.source, [outcome.priorities for outcome in outcomes])


def _is_plain(piece: torch.Tensor) -> bool:
    """Can be read as it lies in memory."""
    return piece.is_cpu and piece.dtype is torch.float32 and piece.is_contiguous()


def _check(
    batch_size: int, updates: int, n_step: int, gamma: float, stack: int, pad: str, alpha: float, prefetch: int
) -> None:
    for name, value, least in (
        ("batch_size", batch_size, 1),
        ("updates", updates, 1),
        ("n_step", n_step, 1),
        ("stack", stack, 1),
        ("prefetch", prefetch, 0),
    ):
        if value < least:
            raise ConfigError(f"{name}={value} must be at least {least}.")
    for name, share in (("gamma", gamma), ("alpha", alpha)):
        if not 0 <= share <= 1:
            raise ConfigError(f"{name}={share} must be between 0 and 1.")
    if pad not in ("first", "zero"):
        raise ConfigError(f"pad={pad!r} must be 'first' or 'zero'.")
