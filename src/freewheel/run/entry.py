"""Where the processes of a run begin and end. The forkserver has this module loaded, so a role starts in milliseconds."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from pathlib import Path

import torch

from freewheel.errors import Trouble
from freewheel.learners.gradient_workers import work as work_for_gradients
from freewheel.learners.package import load
from freewheel.learners.target_process import work_ahead
from freewheel.machine import fault_points, process
from freewheel.machine.global_seeds import seed_globals
from freewheel.machine.malloc import keep_memory
from freewheel.report.profile import profiled
from freewheel.run.actor_process import ActorProcess
from freewheel.run.build import build_learner, build_update
from freewheel.run.channel import Channel
from freewheel.run.learner_process import LearnerProcess
from freewheel.run.plan import Plan

# Given to a compiler as its index: compile, or only look for a package of an earlier run.
COMPILE, ONLY_FIND = 0, 1


def main(kind: str, policy: int, index: int, life: int, plan: Plan, end: socket.socket) -> None:
    """A role from its first instruction to its last; never returns. `policy` is the one that it works for."""
    name = plan.role_name(kind, policy, index)
    stack = process.begin_role(plan.owner)
    seed_globals(plan.process_seed(name, life))
    fault_points.arm(name, life)
    fault_points.reach("spawn")
    channel = Channel(end)
    channel.send({"stack": stack})

    def work() -> None:
        with profiled(name, plan.folder, plan.config.local.profile):
            if kind == "actor":
                ActorProcess(plan, index, life, channel).run()
            elif kind == "learner":
                keep_memory()
                LearnerProcess(plan, plan.policies[policy], life, channel).run()
            else:
                others = {"worker": _compute_gradients, "target": _compute_targets, "compiler": _compile}
                others[kind](plan, policy, index, channel)

    run_role(channel, work)


def _compute_gradients(plan: Plan, policy: int, index: int, channel: Channel) -> None:
    """Computes the gradient of this worker's share of each batch."""
    own = plan.policies[policy]
    assert own.workers is not None
    keep_memory()
    torch.set_num_threads(own.form.threads)
    update = build_update(own, own.placing.workers[index] if own.workers.is_apart else own.device)
    work_for_gradients(own.workers, index, update, lambda: False, lambda note: channel.send({"note": note}))


def _compute_targets(plan: Plan, policy: int, index: int, channel: Channel) -> None:
    """Computes the target values of the learner's next batches.

    The supervisor kills it at the end of a run. With local.profile it ends itself after the last step, to write its profile.
    """
    counts, targets = plan.counts, plan.policies[policy].targets
    assert targets is not None

    def is_stopping() -> bool:
        return plan.config.local.profile and (counts.steps >= plan.config.steps or counts.is_stopping)

    torch.set_num_threads(1)
    work_ahead(targets, load(Path(targets.package)), is_stopping)


def _compile(plan: Plan, policy: int, index: int, channel: Channel) -> None:
    """Compiles a learner's update into a package on disk, while the learner trains on."""
    own = plan.policies[policy]
    torch.set_num_threads(own.form.threads)
    learner = build_learner(plan, own)
    update, example = learner.update, learner.memory.example()
    try:
        paths = update.packaged(*example) if index == ONLY_FIND else update.package(*example)
        channel.send({"package": None if paths is None else [str(path) for path in paths]})
    finally:
        learner.close()


def run_role(channel: Channel, work: Callable[[], None]) -> None:
    """Tells the supervisor of an error, or that the work is done: an exit code alone does not show that."""
    code = 0
    try:
        work()
        channel.send({"done": True})
    except BaseException as error:
        channel.send({"trouble": vars(Trouble.of(error))})
        code = 1
    with contextlib.suppress(OSError):  # an env may have closed it
        channel.socket.settimeout(5.0)
        channel.flush()
    process.leave(code)
