"""Whether compiling the update repays itself in what is left of a run."""

from __future__ import annotations

from freewheel.config import Config

# What compiling takes on a core of its own, and what it saves at least; both are guesses that lean towards not compiling.
COMPILE_S = 60.0
SAVES_SHARE = 0.4
# The first updates are slower than those that follow: nothing is decided by them.
LOOK_AFTER = 50


class Decision:
    """Made once, as soon as the cost of an update is known. `wants` says how it came out."""

    def __init__(self, config: Config) -> None:
        self.wants = False
        self._config = config
        self._is_made = False

    def ask(self, steps: int, updates: int, update_s: float) -> str | None:
        """The decision and its reason, when it is made; None before and after."""
        if self._is_made or updates < LOOK_AFTER:
            return None
        self._is_made = True
        learner = self._config.learner
        left = max(self._config.steps - steps, 0) * learner.ratio / learner.batch_size
        left_s = left * update_s
        self.wants = left_s * SAVES_SHARE > COMPILE_S * (1 - SAVES_SHARE)
        said = f"{left:,.0f} updates of {update_s * 1e3:.2g} ms are left, {left_s:.0f} s"
        if self.wants:
            return f"compiling the update beside the training: {said}."
        return f"the update is not compiled: {said}, which compiling would not repay (--compile on does it anyway)."
