"""The actor's side of the board: the newest whole weights, copied into the vector that its network is bound to."""

from __future__ import annotations

import torch

from freewheel.errors import RoleLost
from freewheel.weights.board import Board

# The learner publishes into the next of several slots, and would have to do so that often during one copy each time.
FETCHES = 1000


class Fetcher:
    """`version` is that of the weights in the vector; 0 before the first."""

    def __init__(self, board: Board, vector: torch.Tensor) -> None:
        self.board, self.vector = board, vector
        self.version = self.num_fetched = 0

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
                self.num_fetched += 1
                return True
        raise RoleLost(
            f"an actor was overtaken {FETCHES} times by new weights while it copied them. Publish less often "
            "(local.publish_every_updates, local.publish_every_s)."
        )
