"""A learner's process: takes lessons, saves checkpoints while it trains, reports what it does."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from freewheel.errors import RAISED, CheckpointError, FreewheelError, RoleLost
from freewheel.machine.compile_decision import Comparison
from freewheel.memory.counts import WAIT_S
from freewheel.report.phases import COUNTERS, GAUGES, PHASES
from freewheel.run import state
from freewheel.run.build import build_learner
from freewheel.run.channel import Channel
from freewheel.run.plan import FIRST_LEARNER, Plan, PolicyPlan
from freewheel.run.worker_control import WorkerControl
from freewheel.store.checkpoint import WriteFile, load_newest
from freewheel.store.load import find_folder
from freewheel.store.saver import Saver

START, WAIT, CHECKPOINT, COMPILE, REPORT, STOP = (
    PHASES.index(name) for name in ("start", "wait_data", "checkpoint", "compile", "report", "stop")
)
BEATS = COUNTERS.index("beats")
LAG, VERSION, AGE = (GAUGES.index(name) for name in ("policy_lag", "version", "sample_age"))

REPORT_S = 0.5


class LearnerProcess:
    """One life of a policy's learner. It continues from the run's newest checkpoint, if there is one."""

    def __init__(self, plan: Plan, policy: PolicyPlan, life: int, channel: Channel) -> None:
        self.plan, self.policy, self.life, self.channel = plan, policy, life, channel
        self.page = plan.ledger.page(FIRST_LEARNER + policy.index)
        self.page.enter(START)  # the supervisor began this phase when it started the process
        torch.set_num_threads(policy.form.threads)
        self.learner = build_learner(plan, policy, self.page)
        self.learner.memory.is_hurried = self._is_hurried
        self.counts = plan.counts.of(policy.index)
        own = plan.config.checkpoint
        self.saver = Saver(policy.checkpoints(plan), own.keep, plan.folder, own.spare)
        self.episodes: dict[str, Any] = {}
        self.workers = WorkerControl(self.learner, policy.workers, channel, self._may_wait, plan.config.local.stall_s)
        # With compile=on the first update waits until the supervisor's compiler is done.
        self.waits_for_package = policy.config.learner.compile == "on"
        self._comparison = Comparison(policy.form_key)
        self._report_due, self._has_reported = 0.0, False
        self._counted: dict[str, int] = {}

    def run(self) -> None:
        try:
            self._resume()
            self._train()
            self.page.enter(CHECKPOINT)
            files = self._last_files()
            if files and self._is_hurried():
                self._save_last()  # first: there may be no time to write a large replay
            self._save_last(files)
            self.page.enter(STOP)
        except RoleLost:
            raise  # another process may use the run's folder by now
        except RAISED:
            # Keeps what was learned: an update that is not finite was not applied.
            if self.saver.saved_step < self.plan.counts.steps:
                self._save_last()
            raise
        finally:
            self.learner.close()
            self.saver.close()
        self._report()

    def _train(self) -> None:
        """Until the run is over."""
        page, counts, learner = self.page, self.plan.counts, self.learner
        learner.begin(is_again=self.life > 0)
        while True:
            page.count(BEATS, 1)
            is_over = counts.is_over  # read first: rows from before the end are learned from
            if is_over:
                self.waits_for_package = False  # the last updates are not worth the wait
            if self.waits_for_package:
                page.enter(COMPILE)
                if self.channel.wait(WAIT_S):
                    self._read_commands()
            elif is_over and self._is_hurried() and learner.memory.is_always_saved:
                break  # complete rollouts are collected again when the run is resumed
            elif learner.turn():
                self._compare()
            elif is_over:
                break
            else:
                page.enter(WAIT)
                learner.wait()
            self._between_lessons()
        learner.publish()
        self.workers.close()

    def _is_hurried(self) -> bool:
        """The run was interrupted before its last step."""
        return self.plan.counts.is_stopping and self.plan.counts.steps < self.plan.config.steps

    def _compare(self) -> None:
        """Compares compiled with eager updates. The faster ones stay, and the machine's cache keeps the result."""
        choice = self._comparison.add(self.learner.update_s, self.learner.update.is_compiled)
        if choice is None:
            return
        if choice.chosen == "eager":
            self.learner.update.go_back()
            self.workers.go_on()
        else:
            self.workers.close()
        self.channel.send({"note": choice.reason})

    def _may_wait(self) -> bool:
        """Whether the supervisor replaces a dead worker: not when it is about to end the run."""
        self.page.count(BEATS, 1)
        return not self.plan.counts.is_stopping

    def _resume(self) -> None:
        """From the newest complete checkpoint, if there is one. Reported after a restart only."""
        who = self.plan.role_name("learner", self.policy.index, 0)
        try:
            checkpoint = load_newest(find_folder(self.plan.checkpoints, self.policy.name))
            state.restore_learner(self.policy, self.learner, checkpoint)
            self.saver.newest_step = self.saver.saved_step = checkpoint.step
            notes = [*checkpoint.warnings, f"{who} continues from {checkpoint.path.name}."]
        except CheckpointError as error:
            notes = [f"{who} begins with new weights: {error}"]
        for note in notes if self.life else ():
            self.channel.send({"note": note})

    def _between_lessons(self) -> None:
        """Starts a checkpoint in another thread when one is due; reports now and then."""
        every, steps = self.plan.config.checkpoint.every_steps, self.plan.counts.steps
        if every and steps // every > self.saver.newest_step // every and not self.saver.is_busy:
            self.page.enter(CHECKPOINT)
            self.saver.save(*self._gathered(), {}, in_background=True)
        now = time.monotonic()
        is_first = self.learner.last is not None and not self._has_reported  # a short run ends before the next report
        if now >= self._report_due or is_first:
            self._has_reported = self.learner.last is not None
            self._report_due = now + REPORT_S
            self.page.enter(REPORT)
            self._read_commands()
            self._tell_saved()
            self.workers.look()
            self._report()

    def _gathered(self) -> tuple[int, dict[str, Any], dict[str, Any]]:
        steps = self.plan.counts.steps
        tensors, found = state.gather_learner(self.policy, self.learner)
        found |= {
            "steps": steps,
            "own_steps": self.counts.steps,
            "seconds": time.monotonic() - self.plan.began_s,
            "all_updates": self.counts.updates,
            "episodes": self.episodes,
            **self.learner.memory.state(),
        }
        return steps, tensors, found

    def _last_files(self) -> dict[str, WriteFile]:
        """The replay: only at the end does no actor write the lanes."""
        memory = self.learner.memory
        if not self.plan.config.checkpoint.replay or memory.is_always_saved:
            return {}
        return {memory.file: self.policy.lanes.save}

    def _save_last(self, files: Mapping[str, WriteFile] | None = None) -> None:
        self._read_commands()
        self.saver.save_last(*self._gathered(), files or {})
        self._tell_saved()

    def _read_commands(self) -> None:
        for command in self.channel.commands():
            if "episodes" in command:
                self.episodes = command["episodes"][self.policy.index]
            if "adopt" in command:
                self._adopt(command["adopt"])

    def _adopt(self, paths: list[str] | None) -> None:
        self.waits_for_package = False
        if paths is None:
            return
        self.workers.rest()
        self.page.enter(COMPILE)
        try:
            self.learner.update.adopt([Path(path) for path in paths])
        except (FreewheelError, RuntimeError, OSError) as error:
            self.channel.send(
                {"note": f"The compiled update could not be loaded ({error}). Training continues with eager updates."}
            )
            self.workers.go_on()
            return
        if self.policy.targets is not None and self.learner.targets is None:
            self.learner.use_targets(self.policy.targets)
        self.channel.send({"compiled": True})

    def _tell_saved(self) -> None:
        for message in self.saver.finished():
            self.channel.send(message)

    def _report(self) -> None:
        learner, page = self.learner, self.page
        metrics = learner.metrics()  # may leave a note
        for note in learner.take_notes():
            self.channel.send({"note": note})
        assert learner.publisher is not None
        totals = {**learner.memory.totals(), "published": learner.publisher.num_published}
        for name, total in {**totals, "dropped_messages": self.channel.num_dropped}.items():
            page.count(COUNTERS.index(name), total - self._counted.get(name, 0))
            self._counted[name] = total
        page.set(AGE, learner.memory.sample_age)
        page.set(VERSION, float(learner.version))
        oldest = learner.memory.oldest_version
        page.set(LAG, metrics.get("policy_lag", float(learner.version - oldest)))
        # 0: a compiled update takes batches of one size, so there is nothing to decide.
        update_s = learner.usual_update_s if learner.memory.has_fixed_size else 0.0
        self.channel.send({"metrics": metrics, "warning": learner.take_warning(), "update_s": update_s})
