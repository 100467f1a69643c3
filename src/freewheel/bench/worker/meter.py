"""How training speed is taken: steps and updates in a window that opens when training is under way."""

import os
import time
from collections.abc import Callable

# Past the first calls of an update, which compile, allocate and fill caches: several calls even where one makes 8.
LEAST_UPDATES = 64


class Meter:
    """Told after every step how far the training is; the same clock for every side.

    The window opens `warm_s` after the first `least_updates` updates, when `may_open` has nothing against it, and closes after
    `seconds`.
    """

    def __init__(
        self,
        warm_s: float,
        seconds: float,
        clock: Callable[[], float] = time.perf_counter,
        least_updates: int = LEAST_UPDATES,
        may_open: Callable[[], bool] = lambda: True,
    ) -> None:
        self._warm_s, self._seconds, self._clock = warm_s, seconds, clock
        self._least_updates, self._may_open = least_updates, may_open
        self._made_s = clock()
        self._ready_s: float | None = None
        self._opened: tuple[float, int, int] | None = None
        self._closed: tuple[float, int, int] | None = None

    def is_over(self, steps: int, updates: int) -> bool:
        """Whether the training may stop, which has made so many steps and updates in all."""
        now = self._clock()
        if self._closed is not None:
            return True
        if self._ready_s is None:
            if updates >= self._least_updates:
                self._ready_s = now
        elif self._opened is None:
            if now - self._ready_s >= self._warm_s and self._may_open():
                self._opened = now, steps, updates
        elif now - self._opened[0] >= self._seconds:
            self._closed = now, steps, updates
        return self._closed is not None

    @property
    def is_open(self) -> bool:
        return self._opened is not None and self._closed is None

    def figures(self) -> dict[str, float]:
        if self._ready_s is None or self._opened is None or self._closed is None:
            raise RuntimeError("the training ended before the window did")
        seconds, steps, updates = (end - start for end, start in zip(self._closed, self._opened, strict=True))
        return {
            "steps_per_s": steps / seconds,
            "updates_per_s": updates / seconds,
            "updates_per_step": updates / steps,
            "seconds": seconds,
            "startup_s": self._ready_s - self._made_s,
        }


class Together:
    """Opens the windows of `count` trainings at once: each leaves a file in the folder when it is warm, and looks for the others'."""

    def __init__(self, folder: str, name: str, count: int) -> None:
        self._folder, self._path, self._count = folder, os.path.join(folder, name), count
        self._is_warm = False

    def __call__(self) -> bool:
        if not self._is_warm:
            self._is_warm = True
            with open(self._path, "x"):
                pass
        return len(os.listdir(self._folder)) >= self._count
