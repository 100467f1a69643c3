"""Where the processes of a run begin. The forkserver has this module loaded, so a role starts in milliseconds."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import torch

from freewheel.learners.ahead import work_ahead
from freewheel.learners.heap import keep_memory
from freewheel.learners.package import load
from freewheel.learners.ratio import STEPS, STOP
from freewheel.learners.workers import help_train
from freewheel.run import points, role
from freewheel.run.acting import Acting
from freewheel.run.acting_on_policy import OnPolicyActing
from freewheel.run.channel import Channel
from freewheel.run.job import Job
from freewheel.run.learning import Learning, build_learner, build_step
from freewheel.run.learning_on_policy import OnPolicyLearning
from freewheel.run.profile import profiled

# What a compiler is asked for, as its number.
ANYTHING, ONLY_FOUND = 0, 1


def main(kind: str, index: int, life: int, job: Job, end: socket.socket) -> None:
    """A role from its first instruction to its last; never returns."""
    stack = role.begin(job.parent, job.owner)
    points.arm(role.name_of(kind, index), life)
    points.reach("spawn")
    channel = Channel(end)
    channel.send({"stack": stack})
    work = {"actor": _act, "learner": _learn, "worker": _help, "ahead": _look_ahead, "compiler": _compile}[kind]
    role.run(channel, work(index, life, job, channel))


def _act(index: int, life: int, job: Job, channel: Channel) -> Callable[[], None]:
    def work() -> None:
        acting = (OnPolicyActing if job.is_on_policy else Acting)(job, index, life, channel)
        with profiled(f"actor-{index}", job.folder, job.config.local.profile):
            acting.run()

    return work


def _learn(index: int, life: int, job: Job, channel: Channel) -> Callable[[], None]:
    def work() -> None:
        keep_memory()
        learning = (OnPolicyLearning if job.is_on_policy else Learning)(job, life, channel)
        with profiled("learner", job.folder, job.config.local.profile):
            learning.run()

    return work


def _help(index: int, life: int, job: Job, channel: Channel) -> Callable[[], None]:
    """Works out the gradient of its share of each batch."""

    def work() -> None:
        assert job.team is not None
        keep_memory()
        step = build_step(job, job.placing.workers[index] if job.team.is_apart else job.device)
        with profiled(f"worker-{index}", job.folder, job.config.local.profile):
            help_train(job.team, index, step, lambda: False, lambda note: channel.send({"note": note}))

    return work


def _look_ahead(index: int, life: int, job: Job, channel: Channel) -> Callable[[], None]:
    """Works out what the target network says of the learner's next batches.

    It is killed at the end of a run, unless its profile is to be written: then it leaves the learner's last updates to the learner.
    """

    def is_stopping() -> bool:
        if not job.config.local.profile:
            return False
        return job.counts.value(STEPS) >= job.config.steps or job.counts.value(STOP) > 0

    def work() -> None:
        assert job.ahead is not None
        torch.set_num_threads(1)
        function = load(Path(job.ahead.package))
        with profiled("ahead", job.folder, job.config.local.profile):
            work_ahead(job.ahead, function, is_stopping)

    return work


def _compile(index: int, life: int, job: Job, channel: Channel) -> Callable[[], None]:
    """Compiles the learner's update into a package on the disk; the learner's own process goes on training meanwhile.

    With index ONLY_FOUND it takes what was compiled before, or nothing.
    """

    def work() -> None:
        learner = build_learner(job)
        step, example = learner.step, learner.example()
        try:
            paths = step.packaged(*example) if index == ONLY_FOUND else step.package(*example)
            channel.send({"package": None if paths is None else [str(path) for path in paths]})
        finally:
            learner.replay.close()

    return work
