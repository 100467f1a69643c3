"""What is kept of a series that may become too long for a log, and for memory."""

from __future__ import annotations

from random import Random


class Thinning:
    """Keeps one of every n of a series, where n is its length so far divided by `dense`, and all while that is below 2; 0 keeps all.

    So a series of n keeps about dense * (1 + log(n / dense)). Which one of each n is kept is drawn: lanes may end their episodes
    in the same order every time, and each of them counts. The draws are the same in every run.
    """

    def __init__(self, dense: int) -> None:
        self.count = 0  # of all so far
        self._dense, self._random = dense, Random(0)
        self._kept = self._next = 0  # in the running block of n: which is kept, and where the next one begins

    def keeps(self) -> bool:
        """Whether the next one is kept."""
        at, self.count = self.count, self.count + 1
        if at >= self._next:
            size = max(at // self._dense, 1) if self._dense else 1
            self._kept, self._next = at + (self._random.randrange(size) if size > 1 else 0), at + size
        return at == self._kept
