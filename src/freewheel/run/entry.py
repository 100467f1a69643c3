"""Where the processes of a run begin and end. The forkserver has this module loaded, so a role starts in milliseconds."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from freewheel.errors import ConfigError, Diverged, EnvError, FreewheelError, RoleLost
from freewheel.learners.gradient_workers import work as work_for_gradients
from freewheel.learners.package import load
from freewheel.learners.target_process import work_ahead
from freewheel.machine import fault_points, process
from freewheel.machine.malloc import keep_memory
from freewheel.report.profile import profiled
from freewheel.run.actor_process import ActorProcess
from freewheel.run.build import build_learner, build_update
from freewheel.run.channel import Channel
from freewheel.run.learner_process import LearnerProcess
from freewheel.run.plan import Plan

Work = Callable[[], None]
# What a compiler is asked for, as its index.
ANYTHING, ONLY_FOUND = 0, 1
MOST_TEXT = 20_000
# How a role says that a second start would end the same way.
FINAL, AGAIN = 3, 4


def main(kind: str, policy: int, index: int, life: int, plan: Plan, end: socket.socket) -> None:
    """A role from its first instruction to its last; never returns. `policy` is the one that it works for."""
    name = plan.role_name(kind, policy, index)
    stack = process.begin(plan.parent, plan.owner)
    fault_points.arm(name, life)
    fault_points.reach("spawn")
    channel = Channel(end)
    channel.send({"stack": stack})
    roles = {"actor": _act, "learner": _learn, "worker": _work, "target": _look_ahead, "compiler": _compile}
    work = roles[kind](policy, index, life, plan, channel)

    def profiled_work() -> None:
        with profiled(name, plan.folder, plan.config.local.profile):
            work()

    run_role(channel, profiled_work)


def _act(policy: int, index: int, life: int, plan: Plan, channel: Channel) -> Work:
    return lambda: ActorProcess(plan, index, life, channel).run()


def _learn(policy: int, index: int, life: int, plan: Plan, channel: Channel) -> Work:
    def work() -> None:
        keep_memory()
        LearnerProcess(plan, plan.policies[policy], life, channel).run()

    return work


def _work(policy: int, index: int, life: int, plan: Plan, channel: Channel) -> Work:
    """Works out the gradient of its share of each batch."""

    def work() -> None:
        own = plan.policies[policy]
        assert own.workers is not None
        keep_memory()
        torch.set_num_threads(own.form.threads)
        update = build_update(own, own.placing.workers[index] if own.workers.is_apart else own.device)
        work_for_gradients(own.workers, index, update, lambda: False, lambda note: channel.send({"note": note}))

    return work


def _look_ahead(policy: int, index: int, life: int, plan: Plan, channel: Channel) -> Work:
    """Works out what the target network says of the learner's next batches.

    It is killed at the end of a run, unless its profile is to be written: then it leaves the learner's last updates to the learner.
    """

    def is_stopping() -> bool:
        if not plan.config.local.profile:
            return False
        return plan.counts.steps >= plan.config.steps or plan.counts.is_stopping

    def work() -> None:
        targets = plan.policies[policy].targets
        assert targets is not None
        torch.set_num_threads(1)
        work_ahead(targets, load(Path(targets.package)), is_stopping)

    return work


def _compile(policy: int, index: int, life: int, plan: Plan, channel: Channel) -> Work:
    """Compiles a learner's update into a package on the disk; the learner's own process goes on training meanwhile.

    With index ONLY_FOUND it takes what was compiled before, or nothing.
    """

    def work() -> None:
        own = plan.policies[policy]
        torch.set_num_threads(own.form.threads)
        learner = build_learner(plan, own)
        update, example = learner.update, learner.memory.example()
        try:
            paths = update.packaged(*example) if index == ONLY_FOUND else update.package(*example)
            channel.send({"package": None if paths is None else [str(path) for path in paths]})
        finally:
            learner.close()

    return work


@dataclass
class Trouble:
    """Why a role ended: what is told, and what the run makes of it."""

    kind: str
    text: str
    trace: str
    is_final: bool

    @classmethod
    def of(cls, error: BaseException) -> Trouble:
        """A mistake of the user, a breach of the env's contract or a divergence would come again; whatever else happened may not."""
        broke_contract = isinstance(error, EnvError) and error.__cause__ is None
        # Of our own errors the message says all; the lines of the user's code are those of its cause.
        shown = error.__cause__ if isinstance(error, FreewheelError) else error
        return cls(
            type(error).__name__,
            str(error)[-MOST_TEXT:],
            "".join(traceback.format_exception(shown))[-MOST_TEXT:] if shown is not None else "",
            broke_contract or isinstance(error, (ConfigError, Diverged)),
        )

    def error(self, who: str) -> FreewheelError:
        """As it is raised where the user sees it."""
        kinds = {"ConfigError": ConfigError, "EnvError": EnvError, "Diverged": Diverged}
        return kinds.get(self.kind, RoleLost)(self.text if self.kind in kinds else f"{who}: {self.kind}: {self.text}")


def run_role(channel: Channel, work: Callable[[], None]) -> None:
    """Works; what goes wrong is told to the supervisor, and the exit code says whether another start makes sense."""
    code = 0
    try:
        work()
    except BaseException as error:
        trouble = Trouble.of(error)
        channel.send({"trouble": vars(trouble)})
        code = FINAL if trouble.is_final else AGAIN
    channel.socket.settimeout(5.0)
    channel.flush()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)  # nothing that an env left running may hold the process
