"""Whether compiling the update repays itself in what is left of a run, and whether it did."""

from __future__ import annotations

import statistics
from collections import deque

from freewheel.config import Config

# What compiling takes on a core of its own, and what it saves at least; both are guesses that lean towards not compiling.
COMPILE_S = 60.0
SAVES_SHARE = 0.4
# Looking for an update that was compiled before takes some seconds of another core.
FIND_S = 10.0
# The first updates are slower than those that follow: nothing is decided by them.
LOOK_AFTER = 50
# Compiled updates that are not this much faster are given up.
LEAST_GAIN = 1.02
# Calls of each kind that are compared, and those after the switch that are not.
COMPARED, SETTLING = 31, 5


class Decision:
    """Made once, as soon as the cost of an update is known.

    `wants` is then True to compile, False to use only what was compiled before, and stays None when even that is too late.
    """

    def __init__(self, config: Config, gain: float | None = None) -> None:
        """`gain` is how many times as fast compiled updates were when they were last tried here with this network."""
        self.wants: bool | None = None
        self._config, self._gain = config, gain
        self._is_made = False

    def ask(self, steps: int, updates: int, update_s: float) -> str | None:
        """The decision and its reason, when it is made; None before and after."""
        if self._is_made or updates < LOOK_AFTER:
            return None
        self._is_made = True
        learner = self._config.learner
        left = max(self._config.steps - steps, 0) * learner.ratio / learner.batch_size
        left_s = left * update_s
        said = f"{left:,.0f} updates of {update_s * 1e3:.2g} ms are left, {left_s:.0f} s"
        if self._gain is not None and self._gain < LEAST_GAIN:
            return f"the update is not compiled: tried before on this machine it was {self._gain:.2f} times as fast."
        saves_share = SAVES_SHARE if self._gain is None else 1 - 1 / self._gain
        if left_s * saves_share > COMPILE_S * (1 - saves_share):
            self.wants = True
            return f"compiling the update beside the training: {said}."
        if left_s > FIND_S:
            self.wants = False
            return (
                f"no update is compiled unless it was before: {said}, which would not repay it (--compile on does it)."
            )
        return f"the update is not compiled: {said}, which would not repay it."


class Comparison:
    """Compiled updates against the eager ones before them, on the same machine with the same neighbours."""

    def __init__(self) -> None:
        self._eager: deque[float] = deque(maxlen=COMPARED)
        self._compiled: list[float] = []
        self._is_made = False

    def add(self, update_s: float, is_compiled: bool) -> tuple[float, float] | None:
        """Seconds of an eager and of a compiled update, once both are known; None before and after."""
        if self._is_made:
            return None
        if not is_compiled:
            self._eager.append(update_s)
            return None
        self._compiled.append(update_s)
        if len(self._compiled) < SETTLING + COMPARED:
            return None
        self._is_made = True
        if len(self._eager) < COMPARED:  # compiled from the start, or nearly so
            return None
        return statistics.median(self._eager), statistics.median(self._compiled[SETTLING:])
