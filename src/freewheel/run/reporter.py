"""What a run reports during training: callbacks, logs, the progress bar, and the status file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from freewheel.config.kept_settings import LogConfig
from freewheel.report.episodes import Episode
from freewheel.report.ledger import Snapshot
from freewheel.report.progress import Progress
from freewheel.report.sink import Sink
from freewheel.report.thinning import Thinning
from freewheel.report.usage import Usage, infer_ms
from freewheel.run.callback import Callback, Moment
from freewheel.run.plan import PolicyPlan
from freewheel.store.checkpoint import Checkpoint

EVENTS = ("on_step", "on_episode", "on_update", "on_checkpoint")
STATUS_S = 2.0  # between two writes of the status file


class Reporter:
    """One per run, for every runtime. `write_status` writes the status file."""

    def __init__(
        self,
        sink: Sink,
        progress: Progress,
        callbacks: Sequence[Callback],
        moment: Moment,
        log: LogConfig,
        write_status: Callable[[], None] = lambda: None,
    ) -> None:
        self.sink, self.progress, self.moment = sink, progress, moment
        self._settings, self._write_status = log, write_status
        # Bound once, and only where a callback has one of its own: most turns have nobody to tell.
        self._calls = {
            name: [getattr(callback, name) for callback in callbacks if _overrides(callback, name)] for name in EVENTS
        }
        self.episodes: list[Episode] = []  # as they are logged, in order
        self._thinning = Thinning(log.thin_after)
        self._is_thin = False
        self._log_due = 0.0
        self._status_due = moment.seconds + STATUS_S

    def note(self, text: str) -> None:
        self.progress.note(text)

    def resume_at(self, checkpoint: Checkpoint) -> None:
        """The run continues from this checkpoint."""
        for warning in checkpoint.warnings:
            self.note(f"warning: {warning}")
        state = checkpoint.state
        self._thinning.count = sum(_num_episodes(own) for own in state.get("policies", {"": state}).values())
        self.moment.step, self.moment.updates, self.moment.seconds = state["steps"], state["updates"], state["seconds"]
        self._status_due = self.moment.seconds + STATUS_S

    def call(self, name: str, *given: Any) -> None:
        """Calls a method of every callback that has its own."""
        for call in self._calls[name]:
            call(self.moment, *given)

    def saved(self, path: Path) -> None:
        """After a checkpoint. The status file is written at the next look, for `freewheel runs` to show at least its steps."""
        self._status_due = 0.0
        self.call("on_checkpoint", path)

    def finished(self, episodes: list[tuple[int, Episode]], policies: Sequence[PolicyPlan]) -> None:
        """Episodes that have ended, each with the index of its policy."""
        named = [replace(one, policy=policies[i].name) if policies[i].name else one for i, one in episodes]
        kept = [episode for episode in named if self._thinning.keeps()]
        self.episodes += kept
        self.sink.episodes(kept)
        if len(kept) < len(named) and not self._is_thin:
            self._is_thin = True
            self.note(
                f"{self._thinning.count:,} episodes: from here on the logs keep one of several, ever fewer "
                "(log.thin_after=0 keeps all)."
            )
        for episode in named:
            self.call("on_episode", episode)

    def is_due(self) -> bool:
        """Whether metrics are due for the log. Also writes the status file when that is due."""
        seconds = self.moment.seconds
        if seconds >= self._status_due:
            self._status_due = seconds + STATUS_S
            self._write_status()
        if seconds < self._log_due:
            return False
        most = self._settings.thin_after
        self._log_due = seconds + max(self._settings.every_s, seconds / most if most else 0.0)
        return True

    def log(self, metrics: dict[str, float]) -> None:
        self.sink.metrics(self.moment.step, {"train/episodes": float(self._thinning.count), **metrics})


def _num_episodes(state: Mapping[str, Any]) -> int:
    """Episodes of a policy when a checkpoint was saved."""
    count = (state.get("episodes") or {}).get("num_finished")
    return count if isinstance(count, int) else 0


def _overrides(callback: Callback, name: str) -> bool:
    return getattr(getattr(callback, name), "__func__", None) is not getattr(Callback, name)


def run_metrics(
    moment: Moment,
    usage: Usage,
    samples: float,
    actors: Sequence[Snapshot],
    spent_s: Mapping[str, float] = MappingProxyType({}),
) -> dict[str, float]:
    """Metrics of the whole run, in every runtime."""
    return {
        "train/updates": float(moment.updates),
        "train/seconds": moment.seconds,
        **usage.metrics({"steps": moment.step, "updates": moment.updates, "samples": samples}, spent_s),
        **infer_ms(actors),
    }


def policy_metrics(
    policy: PolicyPlan,
    pace: Any,
    epsilon: float | None,
    return_mean: float | None,
    learner: Mapping[str, float],
    more: Mapping[str, float] = MappingProxyType({}),
) -> dict[str, float]:
    """Metrics of one policy, under its name where there are several."""
    own: dict[str, float | None] = {
        "train/ratio": pace.achieved(),
        "train/epsilon": epsilon,
        "train/return_mean": return_mean,
        **more,
        **{f"dial/{name}": value for name, value in policy.dials.state().items()},
        **{f"learner/{name}": value for name, value in learner.items()},
    }
    return {f"{policy.prefix}{name}": value for name, value in own.items() if value is not None}
