"""A learner's process, whatever it learns by: goes on from a checkpoint, saves beside the training, tells what it does."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from freewheel.errors import CheckpointError, RoleLost
from freewheel.learners.ratio import Governor
from freewheel.report.phases import COUNTERS, GAUGES, PHASES
from freewheel.run.channel import Channel, Message
from freewheel.run.checkpoint import Checkpoint, load_newest
from freewheel.run.job import LEARNER, Job
from freewheel.run.saver import Saver

START, WAIT, PUBLISH, CHECKPOINT, COMPILE, REPORT, STOP = (
    PHASES.index(name) for name in ("start", "wait_data", "publish", "checkpoint", "compile", "report", "stop")
)
BEATS, PUBLISHED, UPDATES, SAMPLES = (COUNTERS.index(name) for name in ("beats", "published", "updates", "samples"))
LAG, VERSION = (GAUGES.index(name) for name in ("policy_lag", "version"))

REPORT_S = 0.5


class LearnerLife(ABC):
    """One life of the learner; it goes on from the run's newest checkpoint, if there is one."""

    def __init__(self, job: Job, life: int, channel: Channel) -> None:
        self.job, self.life, self.channel = job, life, channel
        self.governor: Governor = job.governor()
        self.page = job.ledger.page(LEARNER)
        self.page.enter(START)  # goes on with what the supervisor began when it asked for this process
        self.saver = Saver(job.checkpoints, job.config.checkpoint.keep)
        self.episodes: dict[str, Any] = {}
        self._report_due = 0.0
        self._counted: dict[str, int] = {}

    @abstractmethod
    def _restore(self, checkpoint: Checkpoint) -> None: ...

    @abstractmethod
    def _train(self) -> None:
        """Until the run is over."""

    @abstractmethod
    def _learner_state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Tensors and the rest, for a checkpoint."""

    @abstractmethod
    def _report(self) -> None: ...

    @abstractmethod
    def _close(self) -> None: ...

    def _is_hurried(self) -> bool:
        """Somebody has ended the run before its time and waits."""
        return self.governor.is_stopping and self.governor.steps < self.job.config.steps

    def _obey(self, command: Message) -> None:
        if "episodes" in command:
            self.episodes = command["episodes"]

    def run(self) -> None:
        try:
            self._go_on()
            self._train()
            self.page.enter(CHECKPOINT)
            files = self._last_files()
            if files and self._is_hurried():
                self._save_now()  # first: a large replay may not be on the disk in time
            self._save_now(files)
            self.page.enter(STOP)
        except RoleLost:
            raise  # the run's folder may be another's by now
        except Exception:
            # What was learned is kept, whatever went wrong: a step that is not finite was not carried out.
            if self.saver.newest_step < self.governor.steps:
                self._save_now()
            raise
        finally:
            self._close()
            self.saver.close()
        self._report()

    def _go_on(self) -> None:
        """From the newest whole checkpoint, if there is one; told where the user has not heard it before."""
        notes: list[str] = []
        try:
            checkpoint = load_newest(self.job.checkpoints)
            self._restore(checkpoint)
            self.saver.newest_step = checkpoint.step
            notes = [*checkpoint.warnings, f"the learner goes on from {checkpoint.path.name}."]
        except CheckpointError as error:
            notes = [f"the learner begins with new weights: {error}"]
        for note in notes if self.life else ():
            self.channel.send({"note": note})

    def _between_calls(self) -> None:
        """A checkpoint when one is due, by a thread of its own; what there is to tell."""
        every, steps = self.job.config.checkpoint.every_steps, self.governor.steps
        if every and steps // every > self.saver.newest_step // every and not self.saver.is_busy:
            self.page.enter(CHECKPOINT)
            self.saver.start(*self._gathered())
        now = time.monotonic()
        if now >= self._report_due:
            self._report_due = now + REPORT_S
            self.page.enter(REPORT)
            self._look()
            self._report()

    def _look(self) -> None:
        """Now and then: what others have said and done."""
        self._read_commands()
        self._tell_saved()

    def _gathered(self) -> tuple[int, dict[str, Any], dict[str, Any]]:
        steps = self.governor.steps
        tensors, found = self._learner_state()
        found |= {
            "steps": steps,
            "seconds": time.monotonic() - self.job.began_s,
            "all_updates": self.governor.updates,
            "episodes": self.episodes,
        }
        return steps, tensors, found

    def _last_files(self) -> dict[str, Callable[[Path], None]]:
        """What the last checkpoint has beside the state."""
        return {}

    def _save_now(self, files: Mapping[str, Callable[[Path], None]] | None = None) -> None:
        self._read_commands()
        self.saver.save(*self._gathered(), dict(files or {}))
        self._tell_saved()

    def _read_commands(self) -> None:
        for command in self.channel.commands():
            self._obey(command)

    def _tell_saved(self) -> None:
        for told in self.saver.finished():
            self.channel.send(told)

    def _count(self, totals: Mapping[str, int]) -> None:
        """Totals that others keep, and the messages that nobody took."""
        for name, total in {**totals, "dropped_messages": self.channel.num_dropped}.items():
            self.page.count(COUNTERS.index(name), total - self._counted.get(name, 0))
            self._counted[name] = total
