"""The state of a run as tensors and JSON: collected for a checkpoint, restored on resume."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from freewheel.actors.actor import Actor, GroupActor
from freewheel.config.check import value_of
from freewheel.errors import CheckpointError
from freewheel.learners.learner import Learner
from freewheel.run.plan import Plan, PolicyPlan
from freewheel.spec import describe
from freewheel.store.checkpoint import Checkpoint, WriteFile
from freewheel.store.load import part_of, restore_weights, under

NO_FIT = (KeyError, TypeError, ValueError, RuntimeError)  # what a checkpoint of another run leads to


def files_of(plan: Plan, learners: Sequence[Learner]) -> dict[str, WriteFile]:
    """What a checkpoint between two turns has besides tensors and state: the rows."""
    return {
        file_of(policy, learner.memory.file): policy.lanes.save
        for policy, learner in zip(plan.policies, learners, strict=True)
        if learner.memory.is_always_saved or policy.config.checkpoint.replay
    }


def file_of(policy: PolicyPlan, name: str) -> str:
    """The file with a policy's rows, which a single policy has under `name`."""
    return f"{policy.name}-{name}" if policy.name else name


def gather(
    plan: Plan, learners: Sequence[Learner], actor: Actor, steps: int, seconds: float
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Everything, with a policy's names under its own name where there are several."""
    tensors: dict[str, Any] = {f"world.{name}": rows for name, rows in (actor.world.state() or {}).items()}
    state: dict[str, Any] = {"steps": steps, "seconds": seconds}
    for policy, learner, group in zip(plan.policies, learners, actor.groups, strict=True):
        learner.pace.before_save(learner.memory)
        own, found = gather_learner(policy, learner)
        own |= group.policy.state()
        if group.history is not None:
            own |= {f"history.{name}": rows for name, rows in group.history.state().items()}
        found |= {**learner.memory.state(), "episodes": group.episodes.state()}
        tensors |= {f"{policy.prefix}{name}": tensor for name, tensor in own.items()}
        if policy.name:
            state.setdefault("policies", {})[policy.name] = {**found, "own_steps": group.counts.steps}
        else:
            state |= found
    state.setdefault("updates", sum(learner.updates for learner in learners))
    return tensors, state


def gather_learner(policy: PolicyPlan, learner: Learner) -> tuple[dict[str, Any], dict[str, Any]]:
    """What every runtime saves: weights, target, optimizer, and the settings and spaces that they belong to."""
    tensors = {**learner.tensors(), "random.learner": learner.memory.generator.get_state()}
    state = {
        "config": asdict(policy.config),
        "obs_space": describe(policy.spaces.obs),
        "action_space": describe(policy.spaces.action),
        "loss": learner.algo.custom_loss,
        "dials": policy.dials.state(),
        **learner.state(),
    }
    return tensors, state


def restore_learner(policy: PolicyPlan, learner: Learner, checkpoint: Checkpoint) -> None:
    """Restores weights, target, optimizer, statistics and random state."""
    tensors, state = part_of(checkpoint, policy.name)
    try:
        restore_weights(learner.tensors(), tensors, checkpoint.path)
        learner.set_state(state)
        learner.memory.generator.set_state(tensors["random.learner"])
    except NO_FIT as error:
        raise CheckpointError(f"checkpoint {checkpoint.path} does not fit this run: {error!r}.") from error


def restore_counts(plan: Plan, checkpoint: Checkpoint) -> None:
    """Restores steps, updates and dials."""
    plan.resumed_at = int(checkpoint.state["steps"])
    for policy in plan.policies:
        _, state = part_of(checkpoint, policy.name)
        counts = plan.counts.of(policy.index)
        counts.add_steps(int(state.get("own_steps", checkpoint.state["steps"])))
        counts.add_updates(int(state.get("all_updates", state["updates"])))
        policy.dials.set_state(_dials_of(policy, state))


def restore_rows(policy: PolicyPlan, checkpoint: Checkpoint, name: str) -> bool:
    """Whether the checkpoint has the policy's rows."""
    path = checkpoint.files.get(file_of(policy, name))
    if path is not None:
        policy.lanes.restore(path)
    return path is not None


def _dials_of(policy: PolicyPlan, state: Mapping[str, Any]) -> dict[str, float]:
    """The saved dials. A new explore.override goes before the saved epsilon, and stays when the run is resumed again."""
    found = dict(state.get("dials", {}))
    if state.get("epsilon_override") is not None:  # of version 0.1
        found["epsilon"] = float(state["epsilon_override"])
    now, before = value_of(policy.config, "explore.override"), state["config"].get("explore", {}).get("override")
    if now is not None and now != before:
        found.pop("epsilon", None)
    elif now is None and before is not None:
        found.setdefault("epsilon", float(before))
    return found


def restore(plan: Plan, learners: Sequence[Learner], actor: Actor, checkpoint: Checkpoint) -> str | None:
    """Restores a checkpoint. Returns what could not be restored exactly, None if everything was."""
    try:
        restore_counts(plan, checkpoint)
        saved = {name: tensor.numpy() for name, tensor in under("world.", checkpoint.tensors).items()}
        exact = np.array(actor.world.set_state(saved or None), np.int64)
        num_lanes = sum(group.num_lanes for group in actor.world.groups)
        lost = num_lanes - len(exact)
        notes = [f"{lost} of {num_lanes} lanes begin a new episode: their env could not be restored"] if lost else []
        first = 0
        for policy, learner, group in zip(plan.policies, learners, actor.groups, strict=True):
            own = exact[(exact >= first) & (exact < first + group.group.num_lanes)] - first
            first += group.group.num_lanes
            restore_learner(policy, learner, checkpoint)
            notes += _restore_group(policy, learner, group, own, checkpoint)
    except NO_FIT as error:
        raise CheckpointError(f"checkpoint {checkpoint.path} does not fit this run: {error!r}.") from error
    return "; ".join(dict.fromkeys(notes)) or None


def _restore_group(
    policy: PolicyPlan, learner: Learner, group: GroupActor, exact: Any, checkpoint: Checkpoint
) -> list[str]:
    """Restores a policy's rows and their writer. Lanes whose env could not be restored begin a new episode."""
    tensors, state = part_of(checkpoint, policy.name)
    notes = group.policy.set_state(tensors)
    if group.history is not None:
        group.history.set_state({name: tensor.numpy() for name, tensor in under("history.", tensors).items()})
    group.episodes.set_state(state["episodes"])
    group.episodes.forget_running(np.setdiff1d(np.arange(group.group.num_lanes), exact))
    has_rows = restore_rows(policy, checkpoint, learner.memory.file)
    if has_rows or "replay" in state:
        learner.memory.set_state(state)
    group.writer = policy.lanes.writer(go_on=exact if has_rows else ())
    notes += learner.pace.resume(state, learner.memory if has_rows else None)
    notes += learner.memory.lost_on_resume()
    return notes
