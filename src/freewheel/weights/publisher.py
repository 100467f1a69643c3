"""The learner's side of the board: what is published when."""

from __future__ import annotations

import time

import torch

from freewheel.weights.board import Board


class Publisher:
    """Publishes after so many updates, or so many seconds after the last time."""

    def __init__(self, board: Board, every_updates: int, every_s: float) -> None:
        self.board, self.num_published = board, 0
        self._every_updates, self._every_s = every_updates, every_s
        self._due_s, self._published_at = 0.0, -1

    @property
    def version(self) -> int:
        return self.board.version

    def is_due(self, updates: int) -> bool:
        return updates - self._published_at >= self._every_updates or time.monotonic() >= self._due_s

    def publish(self, weights: torch.Tensor, updates: int) -> None:
        self.board.publish(weights)
        self.num_published += 1
        self._published_at, self._due_s = updates, time.monotonic() + self._every_s
