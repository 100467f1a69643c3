"""The sequential runtime: actor and learners take turns in one process. Repeatable bit for bit."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from freewheel.errors import FreewheelError, about
from freewheel.machine.fault_points import arm
from freewheel.report.account import Account, RoleTime, account
from freewheel.report.phases import ACTS, LEARNS, PHASES
from freewheel.report.usage import Usage
from freewheel.run import state
from freewheel.run.build import build_actor, build_learner, player_of
from freewheel.run.plan import SUPERVISOR, Plan
from freewheel.run.reporter import Reporter, policy_metrics, run_metrics
from freewheel.store.checkpoint import Checkpoint
from freewheel.store.load import Trained
from freewheel.store.saver import Saver
from freewheel.worlds.pool import PoolWorld
from freewheel.worlds.world import World

START, CHECKPOINT, REPORT, STOP = (PHASES.index(name) for name in ("start", "checkpoint", "report", "stop"))


class Sequential:
    """Each turn of the actor is followed by all lessons that are due, then by logs, checkpoints and callbacks."""

    def __init__(self, plan: Plan, world: World) -> None:
        self.plan, self.config = plan, plan.config
        self._page = plan.ledger.page(SUPERVISOR)
        torch.set_num_threads(max(policy.form.threads for policy in plan.policies))
        self.learners = [build_learner(plan, policy, self._page) for policy in plan.policies]
        self.actor = build_actor(plan, world, map(player_of, plan.policies, self.learners), self._page)
        for learner in self.learners:
            if learner.config.learner.compile == "on":
                learner.update.compile(*learner.memory.example())
            learner.begin(is_again=False)
        self.paces = [learner.pace for learner in self.learners]
        self.windows = [group.episodes.window for group in self.actor.groups]
        self.account: Account | None = None
        self.unsaved: list[str] = []  # why the last checkpoint is not in the run's folder, and where it is
        self._usage = Usage()

    def close(self) -> None:
        for learner in self.learners:
            learner.close()
        self.actor.world.close()

    def attach(self, reporter: Reporter) -> None:
        """The run begins now, and reports to `reporter`."""
        self._reporter, self.moment = reporter, reporter.moment
        self._started, self._cpu_before_s = time.monotonic(), time.process_time()
        self._began = self._started - self.moment.seconds
        self._page.start(START)
        own = self.config.checkpoint
        self._saver = Saver(self.plan.checkpoints, own.keep, self.plan.folder, own.spare, self.moment.step)

    def resume(self, checkpoint: Checkpoint) -> str | None:
        """Restores a checkpoint. Returns what could not be restored exactly."""
        return state.restore(self.plan, self.learners, self.actor, checkpoint)

    def run(self) -> None:
        """Until all steps are taken or the run is stopped. Ends with a checkpoint."""
        every, moment = self.config.checkpoint.every_steps, self.moment
        arm("sequential", 0)
        try:
            while moment.step < self.config.steps and not moment.is_stopping:
                self._turn()
                if every and moment.step // every > self._saver.newest_step // every:
                    self._save(self._saver.save)
        except (Exception, SystemExit):
            self._save_last()  # keeps what was learned
            raise
        self._save_last()
        self._add_up()

    def trained(self) -> list[Trained]:
        """The policies with their current weights."""
        return [Trained(one.algo, one.update.passes.eval_net, one.config) for one in self.learners]

    def metrics(self) -> list[dict[str, float]]:
        """Of the newest update of each policy."""
        return [learner.metrics() for learner in self.learners]

    def _turn(self) -> None:
        """Ends when all lanes have their actions: a checkpoint can be saved between turns."""
        while True:
            self._act()
            # All that is due, even when the run is stopping: a resumed run then continues exactly.
            for learner in self.learners:
                if learner.pace.due():
                    self._learn(learner)
            if not self.actor.waiting:
                break
        self._tell()

    def _act(self) -> None:
        moment, is_new = self.moment, not self.actor.waiting
        self.actor.seconds = moment.seconds
        self.actor.turn()
        self._page.enter(REPORT)
        moment.step = self.plan.counts.steps
        moment.seconds = time.monotonic() - self._began
        moment.return_mean = self.windows[0].mean
        if self.actor.finished:
            self._reporter.finished(self.actor.take_finished(), self.plan.policies)
        if is_new:
            self._reporter.call("on_step")

    def _learn(self, learner: Any) -> None:
        while True:
            try:
                if not learner.turn():
                    return
            except FreewheelError:
                with about(self.plan.policies[self.learners.index(learner)].name):
                    raise
            self._page.enter(REPORT)
            if warning := learner.take_warning():
                self._reporter.note(f"warning: {warning}.")
            for note in learner.take_notes():
                self._reporter.note(note)
            self.moment.updates = self.plan.counts.updates
            self._reporter.call("on_update")

    def _tell(self) -> None:
        moment, progress = self.moment, self._reporter.progress
        if self._reporter.is_due():
            if isinstance(self.actor.world, PoolWorld):
                for note in self.actor.world.take_notes():
                    self._reporter.note(note)
            self._reporter.log(self._metrics())
        if progress.is_due(moment.step):
            last = self.learners[0].last
            loss = last.loss.mean().item() if last else None
            epsilon = self.actor.groups[0].policy.epsilon
            progress.update(moment.step, moment.return_mean, loss, epsilon, self.paces[0].achieved())

    def _metrics(self) -> dict[str, float]:
        samples = sum(one.updates * one.algo.batch_rows for one in self.learners)
        now = self.plan.ledger.snapshot(SUPERVISOR)
        found = run_metrics(
            self.moment, self._usage, samples, [now], {"actor": now.in_s(ACTS), "learner": now.in_s(LEARNS)}
        )
        if isinstance(self.actor.world, PoolWorld):
            found["train/cut_episodes"] = float(self.actor.world.num_truncated)
        for policy, learner, group in zip(self.plan.policies, self.learners, self.actor.groups, strict=True):
            own = group.policy.epsilon, group.episodes.window.mean, learner.metrics()
            found |= policy_metrics(policy, learner.pace, *own)
        return found

    def _save_last(self) -> None:
        if self.moment.step > self._saver.saved_step:
            self._save(self._saver.save_last)

    def _save(self, save: Callable[..., None]) -> None:
        """A checkpoint that cannot be written is reported; the run continues, and earlier checkpoints are kept."""
        moment = self.moment
        self._page.enter(CHECKPOINT)
        tensors, found = state.gather(self.plan, self.learners, self.actor, moment.step, moment.seconds)
        save(moment.step, tensors, found, state.files_of(self.plan, self.learners))
        for message in self._saver.finished():
            if "saved" in message:
                self._reporter.call("on_checkpoint", Path(message["saved"]))
            elif "note" in message:
                self._reporter.note(message["note"])
            else:
                self.unsaved.append(message["unsaved"])

    def _add_up(self) -> None:
        self._page.enter(STOP)
        wall_s = time.monotonic() - self._started
        cpu_s = time.process_time() - self._cpu_before_s
        spent = RoleTime.of("sequential", "sequential", self.plan.ledger.snapshot(SUPERVISOR), wall_s, cpu_s=cpu_s)
        pace, fewer = self.paces[0], self.plan.policies[0].algo_class().fewer_updates
        self.account = account(
            [spent], ratio_target=pace.target, ratio=pace.achieved(), is_free=False, fewer_updates=fewer
        )
        self._reporter.log(self.account.metrics())
