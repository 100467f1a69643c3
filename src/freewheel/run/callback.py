"""What a user may do while a run goes on."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from freewheel.report.episodes import Episode


@dataclass
class Moment:
    """Where a run is when it calls; `stop()` ends it after this call, with a checkpoint.

    `set_epsilon` and `metrics` are there to steer and to look; `metrics` are those of the newest update.
    """

    step: int = 0
    updates: int = 0
    seconds: float = 0.0
    return_mean: float | None = None
    is_stopping: bool = False
    folder: Path | None = None
    _parts: Any = field(default=None, repr=False)

    def stop(self) -> None:
        self.is_stopping = True

    def set_epsilon(self, epsilon: float | None) -> None:
        """This epsilon instead of the schedule's from the next step on; None gives the schedule back."""
        self._parts.actor.explorer.override = epsilon

    def metrics(self) -> dict[str, float]:
        figures: dict[str, float] = self._parts.learner.figures()
        return figures


class Callback:
    """Override what you need. Calls come from the training loop: what takes long holds it up."""

    def on_step(self, moment: Moment) -> None:
        """After each turn of all lanes."""

    def on_episode(self, moment: Moment, episode: Episode) -> None:
        """After each finished episode."""

    def on_update(self, moment: Moment) -> None:
        """After each call of the learner."""

    def on_checkpoint(self, moment: Moment, path: Path) -> None:
        """After each checkpoint."""
