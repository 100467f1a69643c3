"""Replay: lanes sampled many times, as batches of torch tensors; lessons are some draws each."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from freewheel import _core
from freewheel.contracts import Batch, Draws
from freewheel.errors import ConfigError
from freewheel.memory.lanes import Lanes
from freewheel.memory.nested import Drawn, mapped, nth, rows_at
from freewheel.memory.replay_batch import BatchLayout, ReplayBatch

LEAST_PRIORITY = 1e-6  # a row that was predicted exactly keeps a small chance
USED = ("obs", "action", "next_obs", "reward", "discount", "weight")


class Replay:
    """Draws batches from lanes, uniformly or by priority, with n-step returns and frame stacks put together on the way.

    One learner's view: any number of them may read the same lanes, while any process writes them. Batches lie in
    buffers that are filled again only when a batch and every tensor made from it are gone.

    `prefetch` batches are made ready by a thread of their own; 0 makes each when it is asked for, which is what a
    repeatable run wants. On a CUDA device the buffers are pinned and `batch.to(device)` copies without waiting.
    """

    def __init__(
        self,
        lanes: Lanes,
        batch_size: int,
        *,
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
        _check(batch_size, n_step, gamma, stack, pad, alpha, prefetch)
        self.lanes = lanes
        self.batch_size = batch_size
        self.timeout_s = timeout_s
        self._layout = BatchLayout(lanes.spec.fields, batch_size, stack, n_step)
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
        )
        self._core.describe(self._layout.described())
        self._views: dict[int, dict[str, Any]] = {}
        for _ in range(prefetch + 1):
            self._add_buffer()

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
        if any(len(piece) * len(held) != self.batch_size for piece in held):
            raise ConfigError(f"errors of {[len(piece) for piece in held]} rows are not a batch of {self.batch_size}.")
        self._core.update_pieces(batch._lease, [piece.data_ptr() for piece in held], LEAST_PRIORITY)

    @property
    def prioritized(self) -> bool:
        """Batches are drawn by priority; may be changed at any time."""
        return self._core.prioritized

    @prioritized.setter
    def prioritized(self, on: bool) -> None:
        self._core.prioritized = on

    def stats(self) -> dict[str, int]:
        """Batches made; rows drawn again because a writer overtook the copy; draws that were no start; late priorities."""
        return dict(zip(("batches", "redraws", "rejected", "stale_priorities"), self._core.stats(), strict=True))

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps beside the rows, JSON-able; refused with prefetch, whose thread has drawn ahead."""
        return {"random": self._core.random_state(), "max_priority": self._core.max_priority}

    def set_state(self, state: Mapping[str, Any]) -> None:
        priority = float(state["max_priority"])
        if not 0 < priority < math.inf:
            raise ValueError(f"max_priority={priority} must be above 0 and finite")
        self._core.set_random_state(state["random"])
        self._core.max_priority = priority

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
        self.num_samples = 0  # of the newest lesson
        self.updates_per_call = updates_per_call
        # Of a draw now and then: rows of its lane since it was written, and the oldest policy that acted in it.
        self.sample_age, self.oldest_version = 0.0, 0
        # What looks wrong about the first draw, "" if nothing; None before it.
        self.warning: str | None = None
        self._make_draws, self._has_draws = draws, bool(draws(1, torch.Generator()))
        self._beta, self._first_action = beta, first_action
        self._used = (*USED, *columns)
        self.is_hurried: Callable[[], bool] = lambda: False  # a lesson then ends after its next draw
        self._depth = 0
        self._begin_ahead: Callable[[Drawn], None] | None = None
        self._waiting: deque[Drawn] = deque()
        self._given: dict[int, list[Batch]] = {}  # of each of the replay's buffers
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
        return self._waiting.popleft()

    def example(self) -> tuple[Batch, Draws]:
        batch = self._given_of(self.replay.example())[0]
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
        if self.warning is None:
            self.warning = all_alike(views["obs"])
        self.sample_age = views["age"].float().mean().item()
        self.oldest_version = int(views["version"].min())

    def _given_of(self, views: dict[str, Any]) -> list[Batch]:
        """What each call of the update takes of a draw, stacked if it makes several."""
        updates, unrolled = self.num_groups * self.unrolled, self.unrolled
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
            self.num_versions += memory.num_groups * memory.unrolled
            memory.num_samples = self.num_versions * memory.batch_size

    def learned(self, drawn: Drawn, outcomes: Sequence[Any]) -> None:
        if self._memory.replay.prioritized:
            self._memory.replay.update_errors(drawn.source, [outcome.priorities for outcome in outcomes])


def all_alike(obs: Tensor | dict[str, Tensor]) -> str:
    """What a learner should not see: rows that are all alike teach nothing."""
    tensors = list(obs.values()) if isinstance(obs, dict) else [obs]
    if not all(len(rows) > 1 and bool((rows == rows[:1]).all()) for rows in tensors):
        return ""
    value = "0" if not any(bool(rows.any()) for rows in tensors) else "the same"
    return (
        f"all {len(tensors[0])} observations of the first batch are {value}: the agent cannot learn anything from them"
    )


def _is_plain(piece: torch.Tensor) -> bool:
    """Can be read as it lies in memory."""
    return piece.is_cpu and piece.dtype is torch.float32 and piece.is_contiguous()


def _check(batch_size: int, n_step: int, gamma: float, stack: int, pad: str, alpha: float, prefetch: int) -> None:
    for name, value, least in (
        ("batch_size", batch_size, 1),
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
