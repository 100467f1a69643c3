"""All that an on-policy run is, as tensors and JSON: gathered for a checkpoint, put back on resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from freewheel.config import Config, to_dict
from freewheel.errors import CheckpointError
from freewheel.learners.ppo_loop import PPOLearner
from freewheel.run.checkpoint import Checkpoint, save
from freewheel.run.on_policy_parts import PolicyParts
from freewheel.run.state import restore_weights, under
from freewheel.spec import Space, describe

# Rows that were collected and not learned from yet.
ROLLOUT_FILE = "rollout.bin"


def write(folder: Path, parts: PolicyParts, config: Config, steps: int, seconds: float) -> Path:
    """Saves a checkpoint between two turns."""
    tensors, state = gather(parts, config, steps, seconds)
    return save(folder, steps, tensors, state, {ROLLOUT_FILE: parts.lanes.save}, keep=config.checkpoint.keep)


def gather(parts: PolicyParts, config: Config, steps: int, seconds: float) -> tuple[dict[str, Any], dict[str, Any]]:
    actor = parts.actor
    tensors, state = gather_learner(parts.learner, config, parts.world.obs_space, parts.world.action_space)
    tensors["random.drawn"] = actor.sampler.noise.drawn
    tensors |= {f"world.{name}": rows for name, rows in (parts.world.state() or {}).items()}
    if actor.history is not None:
        tensors |= {f"history.{name}": rows for name, rows in actor.history.state().items()}
    state |= {
        "steps": steps,
        "seconds": seconds,
        "rollout": parts.rollout.state(),
        "episodes": actor.episodes.state(),
    }
    return tensors, state


def gather_learner(
    learner: PPOLearner, config: Config, obs_space: Space, action_space: Space
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The part that every runtime has: weights, optimiser, statistics, and what they were made for."""
    tensors: dict[str, Any] = {**learner.step.tensors(), **learner.tensors()}
    tensors["random.learner"] = learner.generator.get_state()
    state = {
        "config": to_dict(config),
        "obs_space": describe(obs_space),
        "action_space": describe(action_space),
        "loss": None,
        "updates": learner.updates,
        "version": learner.version,
    }
    return tensors, state


def restore_learner(learner: PPOLearner, checkpoint: Checkpoint) -> None:
    """Puts weights, optimiser, statistics and chance back."""
    try:
        own = {**learner.step.tensors(), **learner.tensors()}
        restore_weights(own, checkpoint.tensors, checkpoint.path)
        learner.step.num_updates, learner.version = int(checkpoint.state["updates"]), int(checkpoint.state["version"])
        learner.generator.set_state(checkpoint.tensors["random.learner"])
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"checkpoint {checkpoint.path} does not fit this run: {error!r}.") from error


def restore(parts: PolicyParts, checkpoint: Checkpoint) -> str | None:
    """Puts a checkpoint back; the value says what could not go on exactly, None if everything does."""
    state, tensors = checkpoint.state, checkpoint.tensors
    actor = parts.actor
    restore_learner(parts.learner, checkpoint)
    try:
        actor.sampler.noise.go_to(tensors["random.drawn"].numpy())
        actor.episodes.set_state(state["episodes"])
        return _restore_lanes(parts, checkpoint)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"checkpoint {checkpoint.path} does not fit this run: {error!r}.") from error


def _restore_lanes(parts: PolicyParts, checkpoint: Checkpoint) -> str | None:
    """World, rows and the writer that joins them. Lanes whose env cannot be brought back begin a new episode."""
    actor, world = parts.actor, parts.world
    if actor.history is not None:
        actor.history.set_state({name: tensor.numpy() for name, tensor in under("history.", checkpoint).items()})
    world_state = {name: tensor.numpy() for name, tensor in under("world.", checkpoint).items()}
    exact = world.set_state(world_state or None)
    parts.lanes.restore(checkpoint.path_of(ROLLOUT_FILE))
    parts.rollout.set_state(checkpoint.state["rollout"])
    actor.writer = parts.lanes.writer(go_on=exact)
    lost = np.setdiff1d(np.arange(world.num_lanes), exact)
    actor.episodes.forget_running(lost)
    notes = []
    if len(lost):
        notes.append(f"{len(lost)} of {world.num_lanes} lanes begin a new episode: their env could not be brought back")
    if parts.learner.config.rollout.reuse:
        notes.append("rollouts that were kept to be learned from again are collected anew")
    return "; ".join(notes) or None
