"""The local runtime of on-policy algorithms: the same supervision, other parts."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from freewheel.actors.sample import Sampler
from freewheel.config import Config
from freewheel.errors import ConfigError
from freewheel.learners.pace import NUM_PACE_COUNTS, Pace, actors_lag, pace_ratio
from freewheel.learners.ratio import STEPS, UPDATES
from freewheel.memory.counter import Counters
from freewheel.memory.tails import Tails
from freewheel.nets.flat import Flat
from freewheel.report.phases import new_ledger
from freewheel.report.progress import Progress
from freewheel.report.sink import Sink
from freewheel.run.callback import Callback, Moment
from freewheel.run.checkpoint import Checkpoint
from freewheel.run.guard import owner_id
from freewheel.run.job import FIRST_ACTOR, Job
from freewheel.run.layout import Layout
from freewheel.run.local import Local, settled
from freewheel.run.on_policy_parts import build_actor, build_lanes
from freewheel.run.parts import seed_of
from freewheel.weights.board import Board

# Figures of a replay and of exploring: there is neither.
OTHERS = ("train/epsilon", "train/sample_age", "train/redraws", "train/stale_priorities")


def plan_on_policy(config: Config, env: Any, body: Any, layout: Layout) -> Job:
    """Shared memory and all that the roles need; what cannot work is refused before any process starts."""
    config, layout, why_world, obs_space, action_space = settled(config, env, layout)
    net, _ = build_actor(config, obs_space, action_space, body)
    return Job(
        config,
        env,
        body,
        None,
        obs_space,
        action_space,
        layout,
        build_lanes(config, obs_space, action_space, ahead=actors_lag(config)),
        Board(Flat(net).size * 4),
        new_ledger(FIRST_ACTOR + layout.actors),
        Counters(NUM_PACE_COUNTS),
        pace_ratio(config),
        0,
        Path(),  # the run has no folder yet
        time.monotonic(),
        os.getpid(),
        owner_id(),
        why_world=why_world,
        tails=Tails(config.world.lanes),
    )


class LocalOnPolicy(Local):
    """Actors collect rollouts and one learner learns from them, each as fast as the other allows."""

    def __init__(self, job: Job, sink: Sink, progress: Progress, callbacks: Sequence[Callback], moment: Moment) -> None:
        super().__init__(job, sink, progress, callbacks, moment)
        self._ratio_target = 0.0  # nothing is held to one: epochs follow each rollout, and some may be left out
        self._pace(0)

    def go_on(self, checkpoint: Checkpoint) -> str | None:
        """Counts from where a saved run was; the learner itself loads the rest. The value says what is not as it was."""
        counts, saved, ratio = self.job.counts, checkpoint.state, self.job.ratio
        steps, updates = int(saved["steps"]), int(saved.get("all_updates", saved["updates"]))
        self.job.resumed_at = steps
        counts.add(STEPS, steps)
        counts.add(UPDATES, updates)
        ratio.from_step, ratio.from_updates = steps, updates
        self._pace(steps)
        if saved.get("episodes"):
            self._window.set_state(saved["episodes"])
        return "every lane begins a new episode; rows that were not learned from are collected anew"

    def infer(self) -> Sampler:
        """The policy with the weights that were published last, to evaluate it."""
        job = self.job
        net, actions = build_actor(job.config, job.obs_space, job.action_space, job.body)
        flat = Flat(net)
        vector = flat.vector(net)
        job.board.fetch(vector)
        flat.bind(net, vector).eval().requires_grad_(False)
        return Sampler(net, actions, seed_of(job.config, "act"))

    def set_epsilon(self, epsilon: float | None) -> None:
        raise ConfigError(f"algo={self.config.algo} explores by its own policy: there is no epsilon to set.")

    def _pace(self, steps: int) -> None:
        governor = self._governor
        assert isinstance(governor, Pace)
        governor.begin(steps)

    def _begin_to_compile(self) -> None:
        """The learner does it itself."""

    def _decide_to_compile(self) -> None:
        """Only what was asked for is compiled."""

    def _epsilon(self) -> float | None:
        return None

    def _scalars(self) -> dict[str, float]:
        return {name: value for name, value in super()._scalars().items() if name not in OTHERS}
