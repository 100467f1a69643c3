"""What a user may do while a run goes on."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from freewheel.errors import ConfigError
from freewheel.report.episodes import Episode

if TYPE_CHECKING:
    from freewheel.run.local import Local
    from freewheel.run.sequential import Sequential


@dataclass
class Moment:
    """Where a run is when it calls; `stop()` ends it after this call, with a checkpoint.

    `set` and `metrics` are there to steer and to look; `metrics` are those of the newest update.
    """

    step: int = 0
    updates: int = 0
    seconds: float = 0.0
    return_mean: float | None = None
    is_stopping: bool = False
    folder: Path | None = None
    _runtime: Sequential | Local | None = field(default=None, repr=False)

    def stop(self) -> None:
        self.is_stopping = True

    def set(self, dial: str, value: float | None, policy: str = "") -> None:
        """Turns a dial (epsilon, lr, ratio) while the run goes on: in force within a second, kept when a role is replaced, saved in
        checkpoints. None gives the settings back.
        """
        assert self._runtime is not None
        plan = self._runtime.plan
        found = [one for one in plan.policies if one.name == policy]
        if not found:
            names = ", ".join(one.name for one in plan.policies)
            there = f"there are {names}" if names else "the only one has no name"
            raise ConfigError(f"there is no policy {policy!r}; {there}.")
        found[0].set_dial(dial, value, plan.counts.of(found[0].index))

    def set_epsilon(self, epsilon: float | None) -> None:
        """This epsilon instead of the schedule's from the next step on; None gives the schedule back."""
        self.set("epsilon", epsilon)

    def metrics(self) -> dict[str, float]:
        assert self._runtime is not None
        return self._runtime.metrics()


class Callback:
    """Override what you need. In the sequential runtime calls come from the training loop: what takes long holds it up.

    In the local runtime they come from the supervisor, a few times a second, and training goes on meanwhile.
    """

    def on_step(self, moment: Moment) -> None:
        """After each turn of all lanes; in the local runtime when steps were taken since the last call."""

    def on_episode(self, moment: Moment, episode: Episode) -> None:
        """After each finished episode."""

    def on_update(self, moment: Moment) -> None:
        """After each call of the learner; in the local runtime when updates were made since the last call."""

    def on_checkpoint(self, moment: Moment, path: Path) -> None:
        """After each checkpoint."""
