"""Callbacks: the user's code during a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from freewheel.errors import ConfigError
from freewheel.report.episodes import Episode


@dataclass
class Moment:
    """The current state of a run. `stop()` ends the run after this call, with a checkpoint.

    `set` changes a dial; `metrics` returns the metrics of the newest update.
    """

    step: int = 0
    updates: int = 0
    seconds: float = 0.0
    return_mean: float | None = None
    is_stopping: bool = False
    folder: Path | None = None
    _runtime: Any = field(default=None, repr=False)

    def stop(self) -> None:
        self.is_stopping = True

    @property
    def is_ours(self) -> bool:
        """Whether the names of code in the run's settings may be imported again."""
        return self._runtime is not None and all(policy.is_ours for policy in self._runtime.plan.policies)

    def set(self, dial: str, value: float | None, policy: str = "") -> None:
        """Sets a dial (epsilon, lr, ratio, prioritized) during the run. It takes effect within a second, survives restarts, and is saved in
        checkpoints. None returns to the settings.
        """
        plan = self._runtime.plan
        found = {one.name: one for one in plan.policies}
        if policy not in found:
            have = ", ".join(found) or "one policy, without a name"
            raise ConfigError(f"there is no policy {policy!r}; the run has {have}.")
        found[policy].set_dial(dial, value, self._runtime.paces[found[policy].index])

    def set_epsilon(self, epsilon: float | None) -> None:
        """Uses this epsilon instead of the schedule's from the next step on; None returns to the schedule."""
        self.set("epsilon", epsilon)

    def metrics(self) -> dict[str, float]:
        """Of the newest update, under the policy's name where there are several."""
        each = zip(self._runtime.plan.policies, self._runtime.metrics(), strict=True)
        return {f"{policy.prefix}{name}": value for policy, own in each for name, value in own.items()}


class Callback:
    """Override what you need. In the sequential runtime the training loop calls these methods and waits for them.

    In the local runtime the supervisor calls them a few times a second, and training continues meanwhile.
    """

    def on_step(self, moment: Moment) -> None:
        """After each turn of all lanes; in the local runtime if there were steps since the last call."""

    def on_episode(self, moment: Moment, episode: Episode) -> None:
        """After each finished episode."""

    def on_update(self, moment: Moment) -> None:
        """After each call of the learner; in the local runtime if there were updates since the last call."""

    def on_checkpoint(self, moment: Moment, path: Path) -> None:
        """After each checkpoint."""
