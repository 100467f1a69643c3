"""The sequential runtime of on-policy algorithms: collect a rollout, learn from it, throw it away."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from freewheel.actors.sample import Sampler
from freewheel.config import Config
from freewheel.errors import ConfigError
from freewheel.report.progress import Progress
from freewheel.report.sink import Sink
from freewheel.run import on_policy_state
from freewheel.run.callback import Callback, Moment
from freewheel.run.checkpoint import Checkpoint
from freewheel.run.in_turn import InTurn
from freewheel.run.on_policy_parts import PolicyParts


class OnPolicy(InTurn[PolicyParts]):
    """Turns of the actor; when a rollout is complete it is learned from before the next actions are chosen."""

    def __init__(
        self,
        parts: PolicyParts,
        config: Config,
        checkpoints: Path,
        sink: Sink,
        progress: Progress,
        callbacks: Sequence[Callback],
        moment: Moment,
    ) -> None:
        super().__init__(parts, config, checkpoints, sink, progress, callbacks, moment)
        self._samples = 0  # rows that updates of this process were made with
        self._first_step = moment.step

    def go_on(self, checkpoint: Checkpoint) -> str | None:
        """Puts a checkpoint back; the value says what could not go on exactly."""
        return on_policy_state.restore(self.parts, checkpoint)

    def ratio(self) -> float:
        """Rows learned from per step taken, since this process began."""
        return self._samples / max(self.moment.step - self._first_step, 1)

    def ratio_target(self) -> float:
        return 0.0  # nothing is held to one: epochs follow each rollout, and some may be left out

    def infer(self) -> Sampler:
        """The policy as it is."""
        return self.parts.actor.sampler

    def set_epsilon(self, epsilon: float | None) -> None:
        raise ConfigError(f"algo={self.config.algo} explores by its own policy: there is no epsilon to set.")

    def _write_state(self) -> Path:
        moment = self.moment
        return on_policy_state.write(self._checkpoints, self.parts, self.config, moment.step, moment.seconds)

    def _turn(self) -> None:
        actor, learner, moment = self.parts.actor, self.parts.learner, self.moment
        begun = time.perf_counter()
        steps, finished = actor.receive(moment.step, moment.seconds)
        self.parts.rollout.available += steps
        self._acted(steps, finished, actor.episodes.return_mean, begun)
        if learner.is_due():
            self._learn()
        begun = time.perf_counter()
        actor.answer(learner.version)
        self._usage.spend("actor", time.perf_counter() - begun)
        self._log()
        if self._progress.is_due(moment.step):
            loss = learner.last.loss.mean().item() if learner.last else None
            self._progress.update(moment.step, moment.return_mean, loss, ratio=self.ratio())

    def _learn(self) -> None:
        learner = self.parts.learner
        begun = time.perf_counter()
        tail = self.parts.actor.tail()
        while learner.is_due() and learner.call(self.moment.step, tail):
            self._samples += learner.samples_done
            self._learned(learner.updates, begun)
            begun = time.perf_counter()

    def _figures(self) -> dict[str, float]:
        rows = self.parts.rollout.num_rows // self.config.ppo.minibatches
        return self._common_figures(self.moment.updates * rows)
