"""What every runtime does that acts and learns in turn, in one process: checkpoints, logs, callbacks, the account."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Generic, TypeVar

from freewheel.config import Config
from freewheel.errors import CheckpointError
from freewheel.report.account import Account, RoleTime, account, scalars
from freewheel.report.episodes import Episode
from freewheel.report.phases import PHASES
from freewheel.report.progress import Progress
from freewheel.report.sink import Sink
from freewheel.report.usage import Usage, infer_ms
from freewheel.run.callback import Callback, Moment
from freewheel.run.on_policy_parts import PolicyParts
from freewheel.run.parts import Parts
from freewheel.run.points import arm
from freewheel.worlds.pool import PoolWorld

START, CHECKPOINT, REPORT, STOP = (PHASES.index(name) for name in ("start", "checkpoint", "report", "stop"))


P = TypeVar("P", Parts, PolicyParts)


class InTurn(ABC, Generic[P]):
    """Turns until all steps are taken or somebody stops it; what a turn is says the algorithm's own class."""

    def __init__(
        self,
        parts: P,
        config: Config,
        checkpoints: Path,
        sink: Sink,
        progress: Progress,
        callbacks: Sequence[Callback],
        moment: Moment,
    ) -> None:
        self.parts: P = parts
        self.config, self.moment, self._checkpoints = config, moment, checkpoints
        self._sink, self._progress, self._callbacks = sink, progress, callbacks
        self._started, self._cpu_before_s = time.monotonic(), time.process_time()
        self._began = self._started - moment.seconds
        self._page = parts.ledger.page(0)
        self._page.start(START)
        self._account: Account | None = None
        self._usage = Usage()
        self._log_due = 0.0
        self._saved_at = moment.step

    @abstractmethod
    def ratio(self) -> float:
        """Rows learned from per step taken."""

    @abstractmethod
    def ratio_target(self) -> float: ...

    @abstractmethod
    def _turn(self) -> None: ...

    @abstractmethod
    def _write_state(self) -> Path:
        """A checkpoint between two turns."""

    @abstractmethod
    def _figures(self) -> dict[str, float]: ...

    def run(self) -> None:
        """Until all steps are taken or somebody stops it; ends with a checkpoint."""
        every = self.config.checkpoint.every_steps
        moment = self.moment
        arm("sequential", 0)
        try:
            while moment.step < self.config.steps and not moment.is_stopping:
                self._turn()
                if every and moment.step // every > self._saved_at // every:
                    self.save()
        except Exception:
            if moment.step > self._saved_at:
                self.save()  # what was learned is kept, whatever went wrong
            raise
        if moment.step > self._saved_at:
            self._write()
        self._add_up()

    def save(self) -> None:
        """A checkpoint that cannot be written is told and the run goes on: what was saved before is still there."""
        try:
            self._write()
        except CheckpointError as error:
            self._progress.note(f"CheckpointError: {error}")

    def account(self) -> Account | None:
        return self._account

    def metrics(self) -> dict[str, float]:
        """Of the newest update."""
        return self.parts.learner.figures()

    def _write(self) -> None:
        moment = self.moment
        self._page.enter(CHECKPOINT)
        self._saved_at = moment.step
        path = self._write_state()
        for callback in self._callbacks:
            callback.on_checkpoint(moment, path)

    def _acted(self, steps: int, finished: Sequence[Episode], return_mean: float | None, begun: float) -> None:
        """Tells everybody what a turn of the actor gave; `begun` is when it began, by the performance counter."""
        moment = self.moment
        self._page.enter(REPORT)
        self._usage.spend("actor", time.perf_counter() - begun)
        moment.step += steps
        moment.seconds = time.monotonic() - self._began
        moment.return_mean = return_mean
        for episode in finished:
            self._sink.episode(episode)
            for callback in self._callbacks:
                callback.on_episode(moment, episode)
        for callback in self._callbacks:
            callback.on_step(moment)

    def _learned(self, updates: int, begun: float) -> None:
        """Tells everybody that a call of the learner is done."""
        self._page.enter(REPORT)
        self._usage.spend("learner", time.perf_counter() - begun)
        self.moment.updates = updates
        for callback in self._callbacks:
            callback.on_update(self.moment)

    def _log(self) -> None:
        if self.moment.seconds >= self._log_due:
            self._log_due = self.moment.seconds + self.config.log.every_s
            if isinstance(self.parts.world, PoolWorld):
                for note in self.parts.world.take_notes():
                    self._progress.note(note)
            self._sink.scalars(self.moment.step, self._figures())

    def _common_figures(self, samples: int) -> dict[str, float]:
        moment = self.moment
        figures = {
            "train/updates": float(moment.updates),
            "train/seconds": moment.seconds,
            "train/ratio": self.ratio(),
            **{f"learner/{name}": value for name, value in self.metrics().items()},
            **self._usage.figures({"steps": moment.step, "updates": moment.updates, "samples": samples}),
            **infer_ms([self.parts.ledger.snapshot(0)]),
        }
        if isinstance(self.parts.world, PoolWorld):
            figures["train/cut_episodes"] = float(self.parts.world.num_truncated)
        if moment.return_mean is not None:
            figures["train/return_mean"] = moment.return_mean
        return figures

    def _add_up(self) -> None:
        self._page.enter(STOP)
        wall_s = time.monotonic() - self._started
        cpu_s = time.process_time() - self._cpu_before_s
        spent = RoleTime.of("sequential", "sequential", self.parts.ledger.snapshot(0), wall_s, cpu_s=cpu_s)
        self._account = account([spent], ratio_target=self.ratio_target(), ratio=self.ratio(), is_free=False)
        self._sink.scalars(self.moment.step, scalars(self._account))
