"""The sequential runtime: actor and learner in turn, in one process. Repeatable bit for bit."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from freewheel.actors.infer import Infer
from freewheel.config import Config
from freewheel.errors import CheckpointError
from freewheel.report.account import Account, RoleTime, account, scalars
from freewheel.report.phases import PHASES
from freewheel.report.progress import Progress
from freewheel.report.sink import Sink
from freewheel.report.usage import Usage
from freewheel.run import state
from freewheel.run.callback import Callback, Moment
from freewheel.run.checkpoint import Checkpoint
from freewheel.run.parts import Parts

START, CHECKPOINT, REPORT, STOP = (PHASES.index(name) for name in ("start", "checkpoint", "report", "stop"))


class Sequential:
    """Turns of the actor, after each of them the updates that are due; logs, checkpoints and callbacks in between."""

    def __init__(
        self,
        parts: Parts,
        config: Config,
        checkpoints: Path,
        sink: Sink,
        progress: Progress,
        callbacks: Sequence[Callback],
        moment: Moment,
    ) -> None:
        self.parts, self.config, self.moment = parts, config, moment
        self._checkpoints, self._sink, self._progress, self._callbacks = checkpoints, sink, progress, callbacks
        self._started = time.monotonic()
        self._began = self._started - moment.seconds
        self._page = parts.ledger.page(0)
        self._page.start(START)
        self._account: Account | None = None
        self._usage = Usage()
        self._log_due = 0.0
        self._saved_at = moment.step

    def go_on(self, checkpoint: Checkpoint) -> str | None:
        """Puts a checkpoint back; the value says what could not go on exactly."""
        return state.restore(self.parts, checkpoint)

    def run(self) -> None:
        """Until all steps are taken or somebody stops it; ends with a checkpoint."""
        every = self.config.checkpoint.every_steps
        moment = self.moment
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

    def _write(self) -> None:
        moment = self.moment
        self._page.enter(CHECKPOINT)
        self._saved_at = moment.step
        path = state.write(self._checkpoints, self.parts, self.config, moment.step, moment.seconds)
        for callback in self._callbacks:
            callback.on_checkpoint(moment, path)

    def _turn(self) -> None:
        parts, moment = self.parts, self.moment
        begun = time.perf_counter()
        steps, finished = parts.actor.turn(moment.step, parts.learner.updates, moment.seconds)
        self._page.enter(REPORT)
        self._usage.spend("actor", time.perf_counter() - begun)
        moment.step += steps
        moment.seconds = time.monotonic() - self._began
        moment.return_mean = parts.actor.episodes.return_mean
        for episode in finished:
            self._sink.episode(episode)
            for callback in self._callbacks:
                callback.on_episode(moment, episode)
        for callback in self._callbacks:
            callback.on_step(moment)
        # All that is due, even when the run is stopping: a resumed one then goes on as if it had not.
        while parts.learner.due(moment.step) > 0:
            begun = time.perf_counter()
            parts.learner.call(moment.step)
            self._page.enter(REPORT)
            self._usage.spend("learner", time.perf_counter() - begun)
            if doubt := parts.learner.take_doubt():
                self._progress.note(f"warning: {doubt}.")
            moment.updates = parts.learner.updates
            for callback in self._callbacks:
                callback.on_update(moment)
        self._tell()

    def _tell(self) -> None:
        moment, parts = self.moment, self.parts
        if moment.seconds >= self._log_due:
            self._log_due = moment.seconds + self.config.log.every_s
            self._sink.scalars(moment.step, self._figures())
        if self._progress.is_due(moment.step):
            loss = parts.learner.last.loss.mean().item() if parts.learner.last else None
            self._progress.update(
                moment.step, moment.return_mean, loss, float(parts.actor.epsilon.mean()), self.ratio()
            )

    def ratio(self) -> float:
        """Samples drawn per step taken since the warm-up."""
        return self.parts.learner.ratio.achieved(self.moment.step, self.parts.learner.updates)

    def _add_up(self) -> None:
        self._page.enter(STOP)
        wall_s = time.monotonic() - self._started
        spent = RoleTime.of(
            "sequential", "sequential", self.parts.ledger.snapshot(0), wall_s, cpu_s=time.process_time()
        )
        target = self.config.learner.ratio
        self._account = account([spent], ratio_target=target, ratio=self.ratio(), is_free=False)
        self._sink.scalars(self.moment.step, scalars(self._account))

    def infer(self) -> Infer:
        """The policy as it is."""
        return self.parts.actor.infer

    def account(self) -> Account | None:
        return self._account

    def set_epsilon(self, epsilon: float | None) -> None:
        self.parts.actor.explorer.override = epsilon

    def metrics(self) -> dict[str, float]:
        return self.parts.learner.figures()

    def _figures(self) -> dict[str, float]:
        moment, parts = self.moment, self.parts
        samples = moment.updates * self.config.learner.batch_size
        figures = {
            "train/updates": float(moment.updates),
            "train/seconds": moment.seconds,
            "train/ratio": self.ratio(),
            "train/epsilon": float(parts.actor.epsilon.mean()),
            **{f"learner/{name}": value for name, value in parts.learner.figures().items()},
            **self._usage.figures({"steps": moment.step, "updates": moment.updates, "samples": samples}),
        }
        if moment.return_mean is not None:
            figures["train/return_mean"] = moment.return_mean
        return figures
