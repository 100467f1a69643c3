"""The board: versioned weights from one learner, the publisher, to any number of actors, which fetch them."""

from __future__ import annotations

import time

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
    """The learner's side: publishes after so many updates, or so many seconds after the last time."""

    def __init__(self, board: Board, every_updates: int, every_s: float) -> None:
        self.board, self.num_published = board, 0
        self._every_updates, self._every_s = every_updates, every_s
        self._due_s, self._published_at = 0.0, -1

    def is_due(self, updates: int) -> bool:
        return updates - self._published_at >= self._every_updates or time.monotonic() >= self._due_s

    def publish(self, weights: torch.Tensor, updates: int) -> int:
        """Gives the version."""
        self.num_published += 1
        self._published_at, self._due_s = updates, time.monotonic() + self._every_s
        return self.board.publish(weights)


class Fetcher:
    """The actor's side: copies the newest weights into the vector that its network uses. `version` is theirs; 0 before the first."""

    def __init__(self, board: Board, vector: torch.Tensor) -> None:
        self.board, self.vector = board, vector
        self.version = 0

    @property
    def lag(self) -> int:
        """Versions that it is behind."""
        return self.board.version - self.version

    def fetch(self) -> bool:
        """Whether there were newer weights. Again when the learner overtook the copy: the vector then holds no version."""
        if self.board.version == self.version:
            return False
        for _ in range(FETCHES):
            found = self.board.fetch(self.vector)
            if found is not None:
                self.version = found
                return True
        raise RoleLost(
            f"an actor was overtaken {FETCHES} times by new weights while it copied them. Publish less often "
            "(local.publish_every_updates, local.publish_every_s)."
        )
