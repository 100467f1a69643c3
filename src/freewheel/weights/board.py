"""The board: versioned weights from one learner, the publisher, to any number of actors, which fetch them."""

from __future__ import annotations

import time
from typing import Any

import torch

from freewheel import _core
from freewheel.errors import ConfigError, ReplayError, RoleLost
from freewheel.memory.segment import Segment, Shared

# Tries to copy the newest version. The learner would have to publish into all slots during each copy to make them all fail.
FETCHES = 1000
SLOTS = 3


class Board(Shared):
    """`SLOTS` versions of one flat vector in shared memory.

    Publishing is one copy and never waits; fetching is one copy of the newest whole version. The first version published is
    `first_version + 1`. One publisher at a time.
    """

    handed = ("num_bytes", "segment")

    def __init__(self, num_bytes: int, *, first_version: int = 0) -> None:
        if num_bytes < 1:
            raise ConfigError(f"num_bytes={num_bytes} must be at least 1.")
        self.num_bytes = num_bytes
        needed = _core.Board.num_bytes(SLOTS, num_bytes)
        self.segment = Segment.create(needed, "the weight board", "Train a smaller network.")
        self._open(first_version)

    def _open(self, format_at: int | None = None) -> None:
        self.core = _core.Board.make(self.segment.core, SLOTS, self.num_bytes, format_at=format_at)

    @property
    def version(self) -> int:
        """The newest version; one load. Equal to `first_version` until something was published."""
        return self.core.version

    def publish(self, flat: torch.Tensor) -> int:
        """Copies the vector into the next slot and gives its version."""
        return self.core.publish(self._address(flat))

    def fetch(self, flat: torch.Tensor, newer_than: int | None = None) -> int | None:
        """Copies the newest version into the vector and says which it is.

        None, and the vector as it was, when there is nothing newer than `newer_than`; None too when the publisher lapped
        eight tries in a row (the vector then holds no version: fetch again before using it).
        """
        if newer_than is not None and self.core.version == newer_than:
            return None
        return self.core.fetch(self._address(flat))

    def wait(self, newer_than: int, timeout_s: float) -> bool:
        """Sleeps until there is a version newer than this one; False when the time is over first."""
        return self.core.wait((newer_than + 1) % 2**64, timeout_s)

    def _address(self, flat: torch.Tensor) -> int:
        if flat.nbytes != self.num_bytes or not flat.is_contiguous() or not flat.is_cpu:
            raise ReplayError(
                f"the board carries {self.num_bytes} bytes of contiguous CPU memory; it was given {flat.nbytes} bytes"
                f" on {flat.device}{'' if flat.is_contiguous() else ', not contiguous'}."
            )
        return flat.data_ptr()


class Publisher:
    """The learner's side: publishes weights that were updated, after so many updates or so many seconds, whichever comes first.

    Only if the first `num_params` of them differ from the version before by `least_change` of its norm. `copy` brings them from a
    CUDA device while the learner goes on: the version is out a little later; with `every_s` 0 the learner waits for it.
    """

    def __init__(
        self,
        board: Board,
        every_updates: int,
        every_s: float,
        *,
        least_change: float = 0.0,
        num_params: int | None = None,
        copy: HostCopy | None = None,
    ) -> None:
        self.board, self.num_published = board, 0
        self._every_updates, self._every_s = every_updates, every_s
        self._least_change, self._num_params, self._copy = least_change, num_params, copy
        self._due_s, self._offered_at = 0.0, -1
        self._before: torch.Tensor | None = None  # of the version before

    @property
    def version(self) -> int:
        return self.board.version

    def is_due(self, updates: int) -> bool:
        """Whether `offer` has anything to do."""
        return self._is_due(updates) or (self._copy is not None and self._copy.is_on_its_way)

    def offer(self, weights: torch.Tensor, updates: int, waits: bool = False) -> None:
        """The weights after so many updates. `waits`: for a copy on its way too."""
        self._settle(waits)
        if not self._is_due(updates):
            return
        self._mark(updates)
        if self._has_changed(weights):
            self._publish(weights, waits or self._every_s == 0)

    def publish(self, weights: torch.Tensor, updates: int) -> None:
        """Now, however little they have changed."""
        self._mark(updates)
        self._publish(weights, waits=True)

    def _is_due(self, updates: int) -> bool:
        since = updates - self._offered_at
        return since != 0 and (since >= self._every_updates or time.monotonic() >= self._due_s)

    def _mark(self, updates: int) -> None:
        self._offered_at, self._due_s = updates, time.monotonic() + self._every_s

    def _has_changed(self, weights: torch.Tensor) -> bool:
        before = self._before
        if before is None:
            return True
        return bool((weights[: self._num_params] - before).norm() >= self._least_change * before.norm())

    def _publish(self, weights: torch.Tensor, waits: bool) -> None:
        self.num_published += 1
        if self._least_change:
            self._before = weights[: self._num_params].clone()
        if self._copy is None:
            self.board.publish(weights.cpu())
            return
        self._settle(waits=True)
        self._copy.start(weights)
        self._settle(waits)

    def _settle(self, waits: bool) -> None:
        """Publishes a copy that has arrived."""
        if self._copy is not None and (copied := self._copy.finished(waits)) is not None:
            self.board.publish(copied)


class HostCopy:
    """Copies a vector from a CUDA device to pinned memory, by a stream of its own, while the device computes."""

    def __init__(self, size: int, device: torch.device, cuda: Any = torch.cuda) -> None:
        self._device, self._cuda, self._stream = device, cuda, cuda.Stream(device)
        self._pinned = torch.empty(size, pin_memory=cuda.is_available())
        self._done: Any = None  # the event after the copy that is on its way

    @property
    def is_on_its_way(self) -> bool:
        return self._done is not None

    def start(self, vector: torch.Tensor) -> None:
        """Does not wait. The memory of the copy before it is used again: it must have finished."""
        staged = vector.clone()  # the next update changes the vector
        self._stream.wait_stream(self._cuda.current_stream(self._device))
        with self._cuda.stream(self._stream):
            self._pinned.copy_(staged, non_blocking=True)
            self._done = self._cuda.Event()
            self._done.record(self._stream)
        staged.record_stream(self._stream)

    def finished(self, waits: bool) -> torch.Tensor | None:
        """The copy, once: None before it is there."""
        if self._done is None or not (waits or self._done.query()):
            return None
        self._done.synchronize()
        self._done = None
        return self._pinned


class Fetcher:
    """The actor's side: copies the newest weights into the vector that its network uses. `version` is theirs; 0 before the first.

    It takes each version at most once: so many steps or seconds after the last time, whichever comes first; as soon as it is
    there if both are 0.
    """

    def __init__(self, board: Board, vector: torch.Tensor, every_steps: int = 0, every_s: float = 0.0) -> None:
        self.board, self.vector = board, vector
        self.version = 0
        self._every_steps, self._every_s = every_steps, every_s
        self._due_step, self._due_s = 0, 0.0

    @property
    def lag(self) -> int:
        """Versions that it is behind."""
        return self.board.version - self.version

    def fetch(self, step: int = 0) -> bool:
        """Whether it has newer weights now. Tries again when the learner overtook the copy: the vector then holds no version."""
        if self.board.version == self.version or not self._is_due(step):
            return False
        self._due_step, self._due_s = step + self._every_steps, time.monotonic() + self._every_s
        for _ in range(FETCHES):
            found = self.board.fetch(self.vector)
            if found is not None:
                self.version = found
                return True
        raise RoleLost(
            f"an actor was overtaken {FETCHES} times by new weights while it copied them. Publish less often "
            "(local.publish_every_updates, local.publish_every_s)."
        )

    def _is_due(self, step: int) -> bool:
        if self.version == 0 or not (self._every_steps or self._every_s):
            return True
        by_steps = self._every_steps > 0 and step >= self._due_step
        return by_steps or (self._every_s > 0 and time.monotonic() >= self._due_s)
