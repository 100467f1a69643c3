"""The sequential runtime: actor and learner in turn, in one process. Repeatable bit for bit."""

from __future__ import annotations

import time
from pathlib import Path

from freewheel.actors.infer import Infer
from freewheel.run import state
from freewheel.run.checkpoint import Checkpoint
from freewheel.run.in_turn import InTurn
from freewheel.run.parts import Parts


class Sequential(InTurn[Parts]):
    """Turns of the actor, after each of them the updates that are due; logs, checkpoints and callbacks in between."""

    def go_on(self, checkpoint: Checkpoint) -> str | None:
        """Puts a checkpoint back; the value says what could not go on exactly."""
        return state.restore(self.parts, checkpoint)

    def ratio(self) -> float:
        """Samples drawn per step taken since the warm-up."""
        return self.parts.learner.ratio.achieved(self.moment.step, self.parts.learner.updates)

    def ratio_target(self) -> float:
        return self.config.learner.ratio

    def infer(self) -> Infer:
        """The policy as it is."""
        return self.parts.actor.infer

    def set_epsilon(self, epsilon: float | None) -> None:
        self.parts.actor.explorer.override = epsilon

    def _write_state(self) -> Path:
        moment = self.moment
        return state.write(self._checkpoints, self.parts, self.config, moment.step, moment.seconds)

    def _turn(self) -> None:
        actor, learner, moment = self.parts.actor, self.parts.learner, self.moment
        begun = time.perf_counter()
        steps, finished = actor.turn(moment.step, learner.updates, moment.seconds)
        self._acted(steps, finished, actor.episodes.return_mean, begun)
        # All that is due, even when the run is stopping: a resumed one then goes on as if it had not.
        while learner.due(moment.step) > 0:
            begun = time.perf_counter()
            learner.call(moment.step)
            if doubt := learner.take_doubt():
                self._progress.note(f"warning: {doubt}.")
            for note in learner.take_notes():
                self._progress.note(note)
            self._learned(learner.updates, begun)
        self._log()
        if self._progress.is_due(moment.step):
            loss = learner.last.loss.mean().item() if learner.last else None
            self._progress.update(moment.step, moment.return_mean, loss, float(actor.epsilon.mean()), self.ratio())

    def _figures(self) -> dict[str, float]:
        figures = self._common_figures(self.moment.updates * self.config.learner.batch_size)
        return {**figures, "train/epsilon": float(self.parts.actor.epsilon.mean())}
