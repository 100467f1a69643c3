"""Whether compiling the update repays itself in what is left of a run."""

from __future__ import annotations

from freewheel.config import Config

# What compiling takes on a core of its own, and what it saves at least; both are guesses that lean towards not compiling.
COMPILE_S = 60.0
SAVES_SHARE = 0.4
# Looking for an update that was compiled before takes some seconds of another core.
FIND_S = 10.0
# The first updates are slower than those that follow: nothing is decided by them.
LOOK_AFTER = 50


class Decision:
    """Made once, as soon as the cost of an update is known.

    `wants` is then True to compile, False to use only what was compiled before, and stays None when even that is too late.
    """

    def __init__(self, config: Config) -> None:
        self.wants: bool | None = None
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
        said = f"{left:,.0f} updates of {update_s * 1e3:.2g} ms are left, {left_s:.0f} s"
        if left_s * SAVES_SHARE > COMPILE_S * (1 - SAVES_SHARE):
            self.wants = True
            return f"compiling the update beside the training: {said}."
        if left_s > FIND_S:
            self.wants = False
            return (
                f"no update is compiled unless it was before: {said}, which would not repay it (--compile on does it)."
            )
        return f"the update is not compiled: {said}, which would not repay it."
