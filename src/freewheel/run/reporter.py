"""What a run tells while it goes on: callbacks, logs, the progress line, and the status file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from freewheel.report.episodes import Episode
from freewheel.report.progress import Progress
from freewheel.report.sink import Sink
from freewheel.run.callback import Callback, Moment
from freewheel.store.checkpoint import Checkpoint

EVENTS = ("on_step", "on_episode", "on_update", "on_checkpoint")
STATUS_S = 2.0  # between two writes of the status file


class Reporter:
    """One for each run, whatever its runtime. `write_status` keeps the newest state where others look for it."""

    def __init__(
        self,
        sink: Sink,
        progress: Progress,
        callbacks: Sequence[Callback],
        moment: Moment,
        every_s: float,
        write_status: Callable[[], None] = lambda: None,
    ) -> None:
        self.sink, self.progress, self.moment = sink, progress, moment
        self._every_s, self._write_status = every_s, write_status
        # Bound once, and only where a callback has one of its own: most turns have nobody to tell.
        self._calls = {
            name: [getattr(callback, name) for callback in callbacks if _overrides(callback, name)] for name in EVENTS
        }
        self._log_due = 0.0
        self._status_due = moment.seconds + STATUS_S

    def note(self, text: str) -> None:
        self.progress.note(text)

    def resume_at(self, checkpoint: Checkpoint) -> None:
        """The run goes on where a checkpoint was."""
        for warning in checkpoint.warnings:
            self.note(f"warning: {warning}")
        state = checkpoint.state
        self.moment.step, self.moment.updates, self.moment.seconds = state["steps"], state["updates"], state["seconds"]
        self._status_due = self.moment.seconds + STATUS_S

    def call(self, name: str, *given: Any) -> None:
        """Tells the callbacks."""
        for call in self._calls[name]:
            call(self.moment, *given)

    def episode(self, episode: Episode, policy: str = "") -> None:
        episode = replace(episode, policy=policy) if policy else episode
        self.sink.episode(episode)
        self.call("on_episode", episode)

    def is_due(self) -> bool:
        """Whether the metrics are to be logged by now. The status file is kept fresh on the way, however seldom that is."""
        seconds = self.moment.seconds
        if seconds >= self._status_due:
            self._status_due = seconds + STATUS_S
            self._write_status()
        if seconds < self._log_due:
            return False
        self._log_due = seconds + self._every_s
        return True

    def log(self, metrics: dict[str, float]) -> None:
        self.sink.metrics(self.moment.step, metrics)


def _overrides(callback: Callback, name: str) -> bool:
    return getattr(getattr(callback, name), "__func__", None) is not getattr(Callback, name)
