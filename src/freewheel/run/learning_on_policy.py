"""The on-policy learner's process: rollout after rollout, new weights after each, checkpoints beside the training."""

from __future__ import annotations

import time
from typing import Any

import torch

from freewheel.errors import CheckpointError, RoleLost
from freewheel.learners.pace import Pace
from freewheel.learners.ppo_loop import PPOLearner
from freewheel.report.ledger import Page
from freewheel.report.phases import COUNTERS, GAUGES, PHASES
from freewheel.run import on_policy_state
from freewheel.run.channel import Channel
from freewheel.run.checkpoint import load_newest
from freewheel.run.job import LEARNER, Job
from freewheel.run.on_policy_parts import build_actor, build_rollout, build_step
from freewheel.run.parts import seed_of
from freewheel.run.saver import Saver

START, WAIT, PUBLISH, CHECKPOINT, COMPILE, REPORT, STOP = (
    PHASES.index(name) for name in ("start", "wait_data", "publish", "checkpoint", "compile", "report", "stop")
)
BEATS, PUBLISHED, UPDATES, SAMPLES, DROPPED = (
    COUNTERS.index(name) for name in ("beats", "published", "updates", "samples", "dropped_messages")
)
LAG, VERSION = (GAUGES.index(name) for name in ("policy_lag", "version"))

REPORT_S = 0.2


def build_on_policy_learner(job: Job, page: Page | None = None) -> PPOLearner:
    config = job.config
    torch.set_num_threads(config.learner.threads)
    net, actions = build_actor(config, job.obs_space, job.action_space, job.body)
    step = build_step(config, net, actions)
    return PPOLearner(step, build_rollout(config, job.lanes), config, seed_of(config, "learner"), page)


class OnPolicyLearning:
    """One life of the learner; it goes on from the run's newest checkpoint, if there is one."""

    def __init__(self, job: Job, life: int, channel: Channel) -> None:
        self.job, self.life, self.channel = job, life, channel
        self.page = job.ledger.page(LEARNER)
        self.page.start(START)
        governor = job.governor()
        assert isinstance(governor, Pace)
        self.governor = governor
        self.learner = build_on_policy_learner(job, self.page)
        self.learner.beat, self.learner.is_hurried = self._beat, self._is_hurried
        self.saver = Saver(job.checkpoints, job.config.checkpoint.keep)
        self.episodes: dict[str, Any] = {}
        self._report_due = 0.0
        self._dropped = 0
        self._due_at = 0  # outcomes with which the next rollout may be complete

    def run(self) -> None:
        try:
            self._go_on()
            if self.job.config.learner.compile == "on":
                self.page.enter(COMPILE)
                self.learner.step.compile(self.learner.example())
            self._publish()
            self._train()
        except RoleLost:
            raise  # the run's folder may be another's by now
        except Exception:
            # What was learned is kept, whatever went wrong: a step that is not finite was not carried out.
            if self.saver.newest_step < self.governor.steps:
                self._save_now()
            raise
        finally:
            self.saver.close()
        self._report()

    def _go_on(self) -> None:
        """From the newest whole checkpoint, if there is one; told where the user has not heard it before."""
        notes: list[str] = []
        try:
            checkpoint = load_newest(self.job.checkpoints)
            on_policy_state.restore_learner(self.learner, checkpoint)
            self.saver.newest_step = checkpoint.step
            notes = [*checkpoint.warnings, f"the learner goes on from {checkpoint.path.name}."]
        except CheckpointError as error:
            notes = [f"the learner begins with new weights: {error}"]
        for note in notes if self.life else ():
            self.channel.send({"note": note})
        seen = self.governor.seen
        if self.life:
            self.learner.rollout.skip()
        self.governor.allow(seen)
        self._due_at = seen + self.learner.rollout.num_rows

    def _train(self) -> None:
        page, governor, every = self.page, self.governor, self.job.config.checkpoint.every_steps
        while True:
            self._beat()
            is_over = governor.is_over  # looked at first: what came before the end is learned from
            if is_over and self._is_hurried():
                break
            if governor.seen >= self._due_at:
                self._call()
            elif is_over:
                break
            else:
                page.enter(WAIT)
                governor.wait_for(self._due_at)
            if every and governor.steps // every > self.saver.newest_step // every and not self.saver.is_busy:
                page.enter(CHECKPOINT)
                self.saver.start(*self._gathered())
            self._tell()
        page.enter(CHECKPOINT)
        self._save_now()
        page.enter(STOP)

    def _beat(self) -> None:
        self.page.count(BEATS, 1)

    def _is_hurried(self) -> bool:
        """Somebody waits for the end: rollouts that are complete are collected anew when the run goes on."""
        return self.governor.is_stopping and self.governor.steps < self.job.config.steps

    def _call(self) -> None:
        """A rollout, if it is complete: rows may have been left out that were counted as seen."""
        learner, governor, page = self.learner, self.governor, self.page
        assert self.job.tails is not None
        before, seen = learner.updates, governor.seen
        has_learned = learner.call(self._due_at, self.job.tails.of, self.job.board.version)
        # `seen` was looked at first, so this is never more than was handed out.
        handed = seen - learner.rollout.available
        self._due_at = handed + learner.rollout.num_rows
        if has_learned:
            done = learner.updates - before
            governor.add_updates(done)
            page.count(UPDATES, done)
            page.count(SAMPLES, learner.epochs_done * learner.rollout.num_rows)
            self._publish()
        governor.allow(handed)

    def _publish(self) -> None:
        self.page.enter(PUBLISH)
        version = self.job.board.publish(self.learner.step.state.weights)
        self.page.count(PUBLISHED, 1)
        self.page.set(VERSION, float(version))

    def _gathered(self) -> tuple[int, dict[str, Any], dict[str, Any]]:
        job, steps = self.job, self.governor.steps
        tensors, found = on_policy_state.gather_learner(self.learner, job.config, job.obs_space, job.action_space)
        found |= {
            "steps": steps,
            "seconds": time.monotonic() - job.began_s,
            "all_updates": self.governor.updates,
            "episodes": self.episodes,
            "rollout": self.learner.rollout.state(),
        }
        return steps, tensors, found

    def _save_now(self) -> None:
        self._read_commands()
        self.saver.save(*self._gathered(), {})
        self._tell_saved()

    def _tell(self) -> None:
        now = time.monotonic()
        if now < self._report_due:
            return
        self._report_due = now + REPORT_S
        self.page.enter(REPORT)
        self._read_commands()
        self._tell_saved()
        self._report()

    def _read_commands(self) -> None:
        for command in self.channel.commands():
            if "episodes" in command:
                self.episodes = command["episodes"]

    def _tell_saved(self) -> None:
        for told in self.saver.finished():
            self.channel.send(told)

    def _report(self) -> None:
        self.page.count(DROPPED, self.channel.num_dropped - self._dropped)
        self._dropped = self.channel.num_dropped
        figures = self.learner.figures()
        self.page.set(LAG, figures.get("policy_lag", 0.0))
        self.channel.send({"figures": figures, "doubt": "", "update_s": self.learner.update_s})
