"""The learner's process: trains at the ratio, publishes weights, saves checkpoints beside the training."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from freewheel.errors import CheckpointError, FreewheelError, RoleLost
from freewheel.learners.loop import Learner
from freewheel.learners.step import Step
from freewheel.memory.replay import Replay
from freewheel.report.ledger import Page
from freewheel.report.phases import COUNTERS, GAUGES, PHASES
from freewheel.run import state
from freewheel.run.channel import Channel
from freewheel.run.checkpoint import load_newest
from freewheel.run.helping import Helping
from freewheel.run.job import LEARNER, Job
from freewheel.run.parts import build_policy, build_replay, seed_of, updates_together
from freewheel.run.saver import Saver

START, WAIT, PUBLISH, CHECKPOINT, COMPILE, REPORT, STOP = (
    PHASES.index(name) for name in ("start", "wait_data", "publish", "checkpoint", "compile", "report", "stop")
)
BEATS, PUBLISHED, UPDATES, SAMPLES = (COUNTERS.index(name) for name in ("beats", "published", "updates", "samples"))
COUNTED = ("redraws", "stale_priorities", "dropped_messages")  # totals that others keep
AGE, LAG, VERSION = (GAUGES.index(name) for name in ("sample_age", "policy_lag", "version"))

REPORT_S = 0.2


def build_learner(job: Job, page: Page | None = None) -> Learner:
    """As the learner's process has it, and as the one that compiles for it."""
    config = job.config
    torch.set_num_threads(config.learner.threads)
    net, algo = build_policy(config, job.obs_space, job.action_space, job.body, job.loss)
    step = Step(
        net, algo, config.learner, unrolled=updates_together(config), precision=job.precision, device=job.device
    )
    replay: Replay = build_replay(job.lanes, config, step.unrolled, prefetch=config.local.prefetch)
    return Learner(step, replay, config, seed_of(config, "learner"), page)


class Learning:
    """One life of the learner; it goes on from the run's newest checkpoint, if there is one."""

    def __init__(self, job: Job, life: int, channel: Channel) -> None:
        self.job, self.life, self.channel = job, life, channel
        self.governor = job.governor()
        self.page = job.ledger.page(LEARNER)
        self.page.start(START)
        self.learner = build_learner(job, self.page)
        self.helping = Helping(self.learner, job.team, channel, self._may_wait)
        self.saver = Saver(job.checkpoints, job.config.checkpoint.keep)
        self.episodes: dict[str, Any] = {}
        # With compile=on the first update waits for the compiled form; the supervisor has it made.
        self.waits_for_package = job.config.learner.compile == "on"
        self._report_due = self._publish_due = 0.0
        self._published_at = -1
        self._counted = dict.fromkeys(COUNTED, 0)

    def run(self) -> None:
        try:
            self._go_on()
            self._publish()
            self._train()
            self.helping.close()
        except RoleLost:
            raise  # the run's folder may be another's by now
        except Exception:
            # What was learned is kept, whatever went wrong: a step that is not finite was not carried out.
            if self.saver.newest_step < self.governor.steps:
                self._save_now()
            raise
        finally:
            self.learner.replay.close()
            self.saver.close()
        self._report()

    def _go_on(self) -> None:
        """From the newest whole checkpoint, if there is one; told where the user has not heard it before."""
        notes: list[str] = []
        try:
            checkpoint = load_newest(self.job.checkpoints)
            state.restore_learner(self.learner, checkpoint)
            self.saver.newest_step = checkpoint.step
            notes = [*checkpoint.warnings, f"the learner goes on from {checkpoint.path.name}."]
        except CheckpointError as error:
            notes = [f"the learner begins with new weights: {error}"]
        for note in notes if self.life else ():
            self.channel.send({"note": note})

    def _train(self) -> None:
        page, governor, every = self.page, self.governor, self.job.config.checkpoint.every_steps
        while True:
            page.count(BEATS, 1)
            if governor.is_over:
                self.waits_for_package = False  # what is due yet is not worth the wait
            if self.waits_for_package or governor.due() <= 0:
                if governor.is_over:
                    break
                page.enter(COMPILE if self.waits_for_package else WAIT)
                governor.wait_to_learn()
            else:
                self._call()
            if every and governor.steps // every > self.saver.newest_step // every and not self.saver.is_busy:
                page.enter(CHECKPOINT)
                self.saver.start(*self._gathered())
            self._tell()
        self._publish()
        page.enter(CHECKPOINT)
        self._save_now(has_replay=self.job.config.checkpoint.replay)
        page.enter(STOP)

    def _call(self) -> None:
        learner, page = self.learner, self.page
        done = learner.call(self.governor.steps)
        self.governor.add_updates(done)
        page.count(UPDATES, done)
        page.count(SAMPLES, done * self.job.config.learner.batch_size)
        self._publish_when_due()

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

    def _gathered(self) -> tuple[int, dict[str, Any], dict[str, Any]]:
        steps = self.governor.steps
        tensors, found = state.gather_learner(self.learner, self.job.config, self.job.obs_space, self.job.action_space)
        found |= {
            "steps": steps,
            "seconds": time.monotonic() - self.job.began_s,
            "from_step": self.job.ratio.from_step,
            "from_updates": self.job.ratio.from_updates,
            "all_updates": self.governor.updates,
            "episodes": self.episodes,
        }
        return steps, tensors, found

    def _save_now(self, has_replay: bool = False) -> None:
        """The last checkpoint; only here nobody writes the lanes any more."""
        files = {state.REPLAY_FILE: self.job.lanes.save} if has_replay else {}
        self._read_commands()
        self.saver.save(*self._gathered(), files)
        self._tell_saved()

    def _tell(self) -> None:
        now = time.monotonic()
        if now < self._report_due:
            return
        self._report_due = now + REPORT_S
        self.page.enter(REPORT)
        self._read_commands()
        self.helping.look()
        self._tell_saved()
        self._report()

    def _read_commands(self) -> None:
        for command in self.channel.commands():
            if "episodes" in command:
                self.episodes = command["episodes"]
            if "adopt" in command:
                self._adopt(command["adopt"])

    def _adopt(self, paths: list[str] | None) -> None:
        self.waits_for_package = False
        if paths is None or self.learner.step.gradient_by != self.learner.step.gradient:
            return  # a team trains eagerly
        self.page.enter(COMPILE)
        try:
            self.learner.step.adopt([Path(path) for path in paths])
        except (FreewheelError, RuntimeError, OSError) as error:
            self.channel.send({"note": f"the compiled update could not be loaded ({error}): training goes on eagerly."})
            return
        if self.job.ahead is not None and self.learner.ahead is None:
            self.learner.go_ahead(self.job.ahead)
        self.channel.send({"compiled": True})

    def _tell_saved(self) -> None:
        for told in self.saver.finished():
            self.channel.send(told)

    def _report(self) -> None:
        learner, page = self.learner, self.page
        totals = {**learner.replay.stats(), "dropped_messages": self.channel.num_dropped}
        for name in COUNTED:
            page.count(COUNTERS.index(name), totals[name] - self._counted[name])
            self._counted[name] = totals[name]
        page.set(AGE, learner.sample_age)
        page.set(LAG, float(self.job.board.version - learner.oldest_version))
        self.channel.send(
            {
                "figures": learner.figures(),
                "doubt": learner.take_doubt(),
                "update_s": learner.update_s,
            }
        )
