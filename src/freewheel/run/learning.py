"""The learner's process: trains at the ratio, publishes weights, saves checkpoints beside the training."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from freewheel.errors import FreewheelError
from freewheel.learners import forms
from freewheel.learners.device import prepare
from freewheel.learners.loop import Learner
from freewheel.learners.ratio import WAIT_S
from freewheel.learners.step import Step
from freewheel.memory.replay import Replay
from freewheel.report.ledger import Page
from freewheel.report.phases import GAUGES
from freewheel.run import state
from freewheel.run.channel import Channel, Message
from freewheel.run.checkpoint import Checkpoint
from freewheel.run.helping import Helping
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
from freewheel.run.parts import build_policy, build_replay, seed_of, updates_together
from freewheel.run.payoff import LEAST_GAIN, Comparison

COUNTED = ("redraws", "stale_priorities")  # totals that the replay keeps
AGE = GAUGES.index("sample_age")


def build_step(job: Job, device: str) -> Step:
    """As the learner has it, and those who share its gradients."""
    config = job.config
    prepare(device)
    torch.set_num_threads(job.form.threads)
    net, algo = build_policy(config, job.obs_space, job.action_space, job.body, job.loss)
    return Step(
        net,
        algo,
        config.learner,
        unrolled=updates_together(config),
        precision=job.form.precision,
        memory_format=job.form.memory_format,
        device=device,
    )


def build_learner(job: Job, page: Page | None = None, device: str | None = None) -> Learner:
    """As the learner's process has it, and as the one that compiles for it; on the job's device, unless another one is named."""
    config, step = job.config, build_step(job, device or job.device)
    replay: Replay = build_replay(job.lanes, config, step.unrolled, prefetch=config.local.prefetch)
    return Learner(step, replay, config, seed_of(config, "learner"), page)


class Learning(LearnerLife):
    """The learner of action values, from a replay."""

    def __init__(self, job: Job, life: int, channel: Channel) -> None:
        super().__init__(job, life, channel)
        self.learner = build_learner(job, self.page)
        self.helping = Helping(self.learner, job.team, channel, self._may_wait, job.config.local.stall_s)
        # With compile=on the first update waits for the compiled form; the supervisor has it made.
        self.waits_for_package = job.config.learner.compile == "on"
        self._publish_due = 0.0
        self._published_at = -1
        self._comparison = Comparison()

    def _restore(self, checkpoint: Checkpoint) -> None:
        state.restore_learner(self.learner, checkpoint)

    def _train(self) -> None:
        page, governor = self.page, self.governor
        self._publish()
        while True:
            page.count(BEATS, 1)
            if governor.is_over:
                self.waits_for_package = False  # what is due yet is not worth the wait
            if self.waits_for_package:
                page.enter(COMPILE)
                if self.channel.wait(WAIT_S):
                    self._read_commands()
            elif governor.due() <= 0:
                if governor.is_over:
                    break
                page.enter(WAIT)
                governor.wait_to_learn()
            else:
                self._call()
            self._between_calls()
        self._publish()
        self.helping.close()

    def _call(self) -> None:
        learner, page = self.learner, self.page
        done = learner.call(self.governor.steps)
        self.governor.add_updates(done)
        page.count(UPDATES, done)
        page.count(SAMPLES, done * self.job.config.learner.batch_size)
        self._publish_when_due()
        found = self._comparison.add(learner.update_s, learner.step.is_compiled)
        if found is not None:
            self._compared(*found)

    def _compared(self, eager_s: float, compiled_s: float) -> None:
        """Whichever is faster goes on, and is remembered."""
        gain = eager_s / compiled_s
        forms.remember(self.job.form_key, {"compiled": gain})
        said = f"a compiled update takes {1e3 * compiled_s:.3g} ms, an eager one took {1e3 * eager_s:.3g} ms"
        if gain < LEAST_GAIN:
            self.learner.step.go_back()
            self.helping.go_on()
            said += ": updates are eager again"
        else:
            self.helping.close()
        self.channel.send({"note": f"{said}."})

    def _may_wait(self) -> bool:
        """For another worker in place of one that died: the supervisor starts one, unless it is about to end the run."""
        self.page.count(BEATS, 1)
        return not self.governor.is_stopping

    def _publish_when_due(self) -> None:
        local, updates = self.job.config.local, self.learner.updates
        now = time.monotonic()
        if updates - self._published_at >= local.publish_every_updates or now >= self._publish_due:
            self.page.enter(PUBLISH)
            self._publish()
            self._publish_due = now + local.publish_every_s

    def _publish(self) -> None:
        version = self.job.board.publish(self.learner.step.state.weights.cpu())
        self._published_at = self.learner.updates
        self.page.count(PUBLISHED, 1)
        self.page.set(VERSION, float(version))

    def _learner_state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        job = self.job
        tensors, found = state.gather_learner(self.learner, job.config, job.obs_space, job.action_space)
        return tensors, found | {"from_step": job.ratio.from_step, "from_updates": job.ratio.from_updates}

    def _last_files(self) -> dict[str, Callable[[Path], None]]:
        """The replay: only here nobody writes the lanes any more."""
        return {state.REPLAY_FILE: self.job.lanes.save} if self.job.config.checkpoint.replay else {}

    def _look(self) -> None:
        super()._look()
        self.helping.look()

    def _obey(self, command: Message) -> None:
        super()._obey(command)
        if "adopt" in command:
            self._adopt(command["adopt"])

    def _adopt(self, paths: list[str] | None) -> None:
        self.waits_for_package = False
        if paths is None:
            return
        self.helping.rest()
        self.page.enter(COMPILE)
        try:
            self.learner.step.adopt([Path(path) for path in paths])
        except (FreewheelError, RuntimeError, OSError) as error:
            self.channel.send({"note": f"the compiled update could not be loaded ({error}): training goes on eagerly."})
            self.helping.go_on()
            return
        if self.job.ahead is not None and self.learner.ahead is None:
            self.learner.go_ahead(self.job.ahead)
        self.channel.send({"compiled": True})

    def _report(self) -> None:
        learner, page = self.learner, self.page
        for note in learner.take_notes():
            self.channel.send({"note": note})
        totals = learner.replay.stats()
        self._count({name: totals[name] for name in COUNTED})
        page.set(AGE, learner.sample_age)
        page.set(LAG, float(self.job.board.version - learner.oldest_version))
        self.channel.send(
            {
                "figures": learner.figures(),
                "doubt": learner.take_doubt(),
                "update_s": learner.update_s,
            }
        )

    def _close(self) -> None:
        self.learner.replay.close()
