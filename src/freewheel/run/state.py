"""All that a run is, as tensors and JSON: gathered for a checkpoint, put back on resume."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from freewheel.actors.actor import Actor, GroupActor
from freewheel.config import to_dict
from freewheel.config.check import value_of
from freewheel.errors import CheckpointError
from freewheel.learners.learner import Learner
from freewheel.run.plan import Plan, PolicyPlan
from freewheel.spec import describe
from freewheel.store.checkpoint import Checkpoint, WriteFile, load_newest, save
from freewheel.store.load import find_folder, part_of_name, restore_weights, under
from freewheel.worlds.world import World


def write(plan: Plan, learners: Sequence[Learner], actor: Actor, steps: int, seconds: float) -> Path:
    """Saves a checkpoint between two turns."""
    tensors, state = gather(plan, learners, actor, steps, seconds)
    files: dict[str, WriteFile] = {}
    for policy, learner in zip(plan.policies, learners, strict=True):
        if learner.memory.is_always_saved or policy.config.checkpoint.replay:
            files[file_of(policy, learner)] = policy.lanes.save
    return save(plan.checkpoints, steps, tensors, state, files, keep=plan.config.checkpoint.keep)


def file_of(policy: PolicyPlan, learner: Learner) -> str:
    """The name of the file with a policy's rows."""
    return f"{policy.name}-{learner.memory.file}" if policy.name else str(learner.memory.file)


def gather(
    plan: Plan, learners: Sequence[Learner], actor: Actor, steps: int, seconds: float
) -> tuple[dict[str, Any], dict[str, Any]]:
    tensors: dict[str, Any] = {f"world.{name}": rows for name, rows in (actor.world.state() or {}).items()}
    state: dict[str, Any] = {"steps": steps, "seconds": seconds}
    for policy, learner, group in zip(plan.policies, learners, actor.groups, strict=True):
        learner.pace.before_save(learner.memory)
        own, found = gather_learner(policy, learner)
        own |= group.policy.state()
        if group.history is not None:
            own |= {f"history.{name}": rows for name, rows in group.history.state().items()}
        found |= {**learner.memory.state(), "episodes": group.episodes.state()}
        if policy.name:
            found["own_steps"] = group.counts.steps
        put(policy, own, found, tensors, state)
    state.setdefault("updates", sum(learner.updates for learner in learners))
    return tensors, state


def put(
    policy: PolicyPlan, own: Mapping[str, Any], found: Mapping[str, Any], tensors: dict[str, Any], state: dict[str, Any]
) -> None:
    """A policy's part of a checkpoint: under its name, or without one where it is the only one."""
    tensors |= {f"{policy.prefix}{name}": tensor for name, tensor in own.items()}
    if policy.name:
        state.setdefault("policies", {})[policy.name] = dict(found)
    else:
        state |= found


def part_of(checkpoint: Checkpoint, policy: PolicyPlan) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """What `put` was given."""
    return part_of_name(checkpoint, policy.name)


@dataclass(frozen=True)
class _Joined(Checkpoint):
    """Several checkpoints as one: files lie where they were."""

    paths: Mapping[str, Path] = field(default_factory=dict)

    def path_of(self, name: str) -> Path:
        return self.paths[name]


def newest_folder(plan: Plan, policy: PolicyPlan) -> Path:
    """Where the newest checkpoint with a policy lies: of all policies together, or of its own."""
    return find_folder(plan.checkpoints, policy.name)


def load_run(checkpoints: Path, policies: Sequence[str] = ()) -> Checkpoint:
    """The newest state of a run: one checkpoint, or the newest of each policy that was saved by itself, as one."""
    folders = {name: find_folder(checkpoints, name) for name in policies}
    if all(folder == checkpoints for folder in folders.values()):
        return load_newest(checkpoints)
    parts = {name: load_newest(folder) for name, folder in folders.items()}
    found = {name: part_of_name(part, name) for name, part in parts.items()}
    newest = max(parts.values(), key=lambda part: part.step)
    states = {name: state for name, (_, state) in found.items()}
    merged = {
        "policies": states,
        "steps": sum(int(own["own_steps"]) for own in states.values()),
        "updates": sum(int(own["updates"]) for own in states.values()),
        "seconds": max(float(part.state["seconds"]) for part in parts.values()),
    }
    tensors = {f"{name}/{key}": tensor for name, (own, _) in found.items() for key, tensor in own.items()}
    files: dict[str, Path] = {}
    for name, part in parts.items():
        is_own = "policies" not in part.state
        files |= {f"{name}-{file}" if is_own else file: part.path_of(file) for file in part.files}
    warnings = tuple(dict.fromkeys(warning for part in parts.values() for warning in part.warnings))
    return _Joined(newest.path, newest.step, tensors, merged, tuple(files), newest.version, warnings, files)


def gather_learner(policy: PolicyPlan, learner: Learner) -> tuple[dict[str, Any], dict[str, Any]]:
    """The part that every runtime has: weights, target, optimiser, and what they were made for."""
    tensors: dict[str, Any] = dict(learner.tensors())
    tensors["random.learner"] = learner.memory.generator.get_state()
    state = {
        "config": to_dict(policy.config),
        "obs_space": describe(policy.spaces.obs),
        "action_space": describe(policy.spaces.action),
        "loss": learner.algo.custom_loss,
        "dials": policy.dials.state(),
        **learner.state(),
    }
    return tensors, state


def restore_learner(policy: PolicyPlan, learner: Learner, checkpoint: Checkpoint) -> None:
    """Puts weights, target, optimiser, statistics and chance back."""
    tensors, state = part_of(checkpoint, policy)
    try:
        restore_weights(learner.tensors(), tensors, checkpoint.path)
        learner.set_state(state)
        learner.memory.generator.set_state(tensors["random.learner"])
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"checkpoint {checkpoint.path} does not fit this run: {error!r}.") from error


def restore_counts(plan: Plan, checkpoint: Checkpoint) -> None:
    """Steps, updates and dials from where a saved run was."""
    plan.resumed_at = int(checkpoint.state["steps"])
    for policy in plan.policies:
        _, state = part_of(checkpoint, policy)
        counts = plan.counts.of(policy.index)
        counts.add_steps(int(state.get("own_steps", checkpoint.state["steps"])))
        counts.add_updates(int(state.get("all_updates", state["updates"])))
        policy.dials.set_state(_dials_of(policy, state))


def _dials_of(policy: PolicyPlan, state: Mapping[str, Any]) -> dict[str, float]:
    """The dials as they were saved. An explore.override that is given on resume goes before the dial of the earlier life, and holds
    when the run is resumed again.
    """
    found = dict(state.get("dials", {}))
    if state.get("epsilon_override") is not None:  # of version 0.1
        found["epsilon"] = float(state["epsilon_override"])
    now, before = (
        value_of(policy.config, "explore.override"),
        state["config"].get("explore", {}).get("override"),
    )
    if now is not None and now != before:
        found.pop("epsilon", None)
    elif now is None and before is not None:
        found.setdefault("epsilon", float(before))
    return found


def restore(plan: Plan, learners: Sequence[Learner], actor: Actor, checkpoint: Checkpoint) -> str | None:
    """Puts a checkpoint back; the value says what could not go on exactly, None if everything does."""
    notes: list[str] = []
    try:
        restore_counts(plan, checkpoint)
        saved = {name: tensor.numpy() for name, tensor in under("world.", checkpoint.tensors).items()}
        exact = np.array(actor.world.set_state(saved or None), np.int64)
        notes += _lost_lanes(actor.world, exact)
        first = 0
        for policy, learner, group in zip(plan.policies, learners, actor.groups, strict=True):
            own = exact[(exact >= first) & (exact < first + group.group.num_lanes)] - first
            first += group.group.num_lanes
            restore_learner(policy, learner, checkpoint)
            notes += _restore_group(policy, learner, group, own, checkpoint)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"checkpoint {checkpoint.path} does not fit this run: {error!r}.") from error
    return "; ".join(dict.fromkeys(notes)) or None


def _restore_group(
    policy: PolicyPlan, learner: Learner, group: GroupActor, exact: Any, checkpoint: Checkpoint
) -> list[str]:
    """A policy's rows and the writer that goes on with them. Lanes whose env cannot be brought back begin a new episode."""
    tensors, state = part_of(checkpoint, policy)
    notes = group.policy.set_state(tensors)
    if group.history is not None:
        group.history.set_state({name: tensor.numpy() for name, tensor in under("history.", tensors).items()})
    group.episodes.set_state(state["episodes"])
    group.episodes.forget_running(np.setdiff1d(np.arange(group.group.num_lanes), exact))
    name = file_of(policy, learner)
    has_rows = name in checkpoint.files
    if has_rows:
        policy.lanes.restore(checkpoint.path_of(name))
        learner.memory.set_state(state)
    elif "replay" in state:
        learner.memory.set_state(state)
    group.writer = policy.lanes.writer(go_on=exact if has_rows else ())
    notes += learner.pace.resume(state, learner.memory if has_rows else None)
    notes += learner.memory.lost_on_resume()
    return notes


def _lost_lanes(world: World, exact: Any) -> list[str]:
    lanes = sum(group.num_lanes for group in world.groups)
    if len(exact) == lanes:
        return []
    return [f"{lanes - len(exact)} of {lanes} lanes begin a new episode: their env could not be brought back"]
