"""The on-policy learner's process: rollout after rollout, new weights after each, checkpoints beside the training."""

from __future__ import annotations

from typing import Any

import torch

from freewheel.learners.forms import settled
from freewheel.learners.pace import Pace
from freewheel.learners.ppo_loop import PPOLearner
from freewheel.nets.inputs import set_memory_format
from freewheel.report.ledger import Page
from freewheel.run import on_policy_state
from freewheel.run.channel import Channel
from freewheel.run.checkpoint import Checkpoint
from freewheel.run.job import Job
from freewheel.run.learner_life import (
    BEATS,
    COMPILE,
    LAG,
    PUBLISH,
    PUBLISHED,
    SAMPLES,
    UPDATES,
    VERSION,
    WAIT,
    LearnerLife,
)
from freewheel.run.machine import num_cores
from freewheel.run.on_policy_parts import build_actor, build_rollout, build_step
from freewheel.run.parts import seed_of


def build_on_policy_learner(job: Job, page: Page | None = None) -> PPOLearner:
    config = job.config
    net, actions = build_actor(config, job.obs_space, job.action_space, job.body)
    # Actors of a policy never rest: the learner has the cores that they leave.
    form = settled(config.learner, net, max(num_cores() - job.layout.actors, 1))
    torch.set_num_threads(form.threads)
    set_memory_format(net, form.memory_format)
    step = build_step(config, net, actions)
    return PPOLearner(step, build_rollout(config, job.lanes), config, seed_of(config, "learner"), page)


class OnPolicyLearning(LearnerLife):
    """The learner of a policy, from rollouts."""

    governor: Pace

    def __init__(self, job: Job, life: int, channel: Channel) -> None:
        super().__init__(job, life, channel)
        self.learner = build_on_policy_learner(job, self.page)
        self.learner.beat, self.learner.is_hurried = self._beat, self._is_hurried
        self._due_at = 0  # outcomes with which the next rollout may be complete

    def _restore(self, checkpoint: Checkpoint) -> None:
        on_policy_state.restore_learner(self.learner, checkpoint)

    def _train(self) -> None:
        page, governor, learner = self.page, self.governor, self.learner
        seen = governor.seen
        if self.life:
            learner.rollout.skip()
        governor.allow(seen)
        self._due_at = seen + learner.rollout.num_rows
        if self.job.config.learner.compile == "on":
            page.enter(COMPILE)
            learner.step.compile(learner.example())
        self._publish()
        while True:
            self._beat()
            is_over = governor.is_over  # looked at first: what came before the end is learned from
            if is_over and self._is_hurried():
                break  # rollouts that are complete are collected anew when the run goes on
            if governor.seen >= self._due_at:
                self._call()
            elif is_over:
                break
            else:
                page.enter(WAIT)
                governor.wait_for(self._due_at)
            self._between_calls()

    def _beat(self) -> None:
        self.page.count(BEATS, 1)

    def _call(self) -> None:
        """A rollout, if it is complete: rows may have been left out that were counted as seen."""
        learner, governor, page = self.learner, self.governor, self.page
        assert self.job.tails is not None
        before, seen = learner.updates, governor.seen
        has_learned = learner.call(self._due_at, self.job.tails.of, self.job.board.version)
        # `seen` was looked at first, so this is never more than was handed out.
        handed = seen - learner.rollout.available
        self._due_at = handed + learner.rollout.due
        if has_learned:
            done = learner.updates - before
            governor.add_updates(done)
            page.count(UPDATES, done)
            page.count(SAMPLES, learner.samples_done)
            self._publish()
        governor.allow(handed)

    def _publish(self) -> None:
        self.page.enter(PUBLISH)
        version = self.job.board.publish(self.learner.step.state.weights)
        self.page.count(PUBLISHED, 1)
        self.page.set(VERSION, float(version))

    def _learner_state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        job = self.job
        tensors, found = on_policy_state.gather_learner(self.learner, job.config, job.obs_space, job.action_space)
        return tensors, found | {"rollout": self.learner.rollout.state()}

    def _report(self) -> None:
        self._count({})
        figures = self.learner.figures()
        self.page.set(LAG, figures.get("policy_lag", 0.0))
        self.channel.send({"figures": figures, "doubt": "", "update_s": self.learner.update_s})

    def _close(self) -> None:
        """Nothing to do: rows are read where they lie."""
