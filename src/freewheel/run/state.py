"""All that a run is, as tensors and JSON: gathered for a checkpoint, put back on resume."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from freewheel.actors.loop import Actor
from freewheel.config import Config, to_dict
from freewheel.errors import CheckpointError
from freewheel.learners.loop import Learner
from freewheel.run.checkpoint import Checkpoint, save
from freewheel.run.parts import Parts
from freewheel.spec import Space, describe

REPLAY_FILE = "replay.bin"


def write(folder: Path, parts: Parts, config: Config, steps: int, seconds: float) -> Path:
    """Saves a checkpoint between two turns."""
    tensors, state = gather(parts, config, steps, seconds)
    files = {REPLAY_FILE: parts.lanes.save} if config.checkpoint.replay else {}
    return save(folder, steps, tensors, state, files, keep=config.checkpoint.keep)


def gather(parts: Parts, config: Config, steps: int, seconds: float) -> tuple[dict[str, Any], dict[str, Any]]:
    actor, learner = parts.actor, parts.learner
    tensors, state = gather_learner(learner, config, parts.world.obs_space, parts.world.action_space)
    tensors["random.noise"] = actor.infer.noise.get_state()
    tensors["random.taus"] = actor.infer.taus.drawn
    tensors["explore.drawn"], tensors["explore.held"] = actor.explorer.chance.drawn, actor.explorer.held
    world = parts.world.state()
    tensors |= {f"world.{name}": rows for name, rows in (world or {}).items()}
    if actor.history is not None:
        tensors |= {f"history.{name}": rows for name, rows in actor.history.state().items()}
    state |= {
        "steps": steps,
        "seconds": seconds,
        "from_step": learner.ratio.from_step,
        "from_updates": learner.ratio.from_updates,
        "epsilon_override": actor.explorer.override,
        "replay": parts.replay.state(),
        "episodes": actor.episodes.state(),
    }
    return tensors, state


def gather_learner(
    learner: Learner, config: Config, obs_space: Space, action_space: Space
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The part that every runtime has: weights, target, optimiser, and what they were made for."""
    tensors: dict[str, Any] = dict(learner.step.tensors())
    tensors["random.learner"] = learner.generator.get_state()
    state = {
        "config": to_dict(config),
        "obs_space": describe(obs_space),
        "action_space": describe(action_space),
        "loss": learner.step.algo.custom_loss,
        "updates": learner.updates,
    }
    return tensors, state


def restore_learner(learner: Learner, checkpoint: Checkpoint) -> None:
    """Puts weights, target, optimiser and chance back."""
    try:
        restore_weights(learner.step.tensors(), checkpoint.tensors, checkpoint.path)
        learner.step.num_updates = int(checkpoint.state["updates"])
        learner.generator.set_state(checkpoint.tensors["random.learner"])
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"checkpoint {checkpoint.path} does not fit this run: {error!r}.") from error


def restore(parts: Parts, checkpoint: Checkpoint) -> str | None:
    """Puts a checkpoint back; the value says what could not go on exactly, None if everything does."""
    state, tensors = checkpoint.state, checkpoint.tensors
    learner, actor = parts.learner, parts.actor
    try:
        restore_learner(learner, checkpoint)
        learner.ratio.from_step, learner.ratio.from_updates = int(state["from_step"]), int(state["from_updates"])
        actor.infer.noise.set_state(tensors["random.noise"])
        notes = _restore_chance(actor, tensors)
        actor.explorer.held[...] = tensors["explore.held"].numpy()
        if actor.explorer.config.override is None:
            actor.explorer.override = state["epsilon_override"]
        parts.replay.set_state(state["replay"])
        actor.episodes.set_state(state["episodes"])
        return "; ".join(notes + _restore_lanes(parts, checkpoint)) or None
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"checkpoint {checkpoint.path} does not fit this run: {error!r}.") from error


def restore_weights(own: Mapping[str, torch.Tensor], saved: Mapping[str, torch.Tensor], path: Path) -> None:
    """Copies saved tensors into the run's own, all of which must be there in the same shape."""
    for name, tensor in own.items():
        found = saved.get(name)
        if found is None or found.shape != tensor.shape or found.dtype != tensor.dtype:
            have = "is missing" if found is None else f"is {found.dtype} {tuple(found.shape)}"
            raise CheckpointError(
                f"checkpoint {path}: {name} {have}; this run's network needs {tensor.dtype} {tuple(tensor.shape)}. "
                "It was saved with other settings or another env."
            )
    for name, tensor in own.items():
        tensor.copy_(saved[name])


def _restore_chance(actor: Actor, tensors: Mapping[str, torch.Tensor]) -> list[str]:
    """Where each lane was in its own stream of chance; checkpoints of earlier versions had one for all lanes."""
    if "explore.drawn" not in tensors:
        return ["what lanes try is drawn anew: the checkpoint is of a version that drew for all of them together"]
    actor.infer.taus.go_to(tensors["random.taus"].numpy())
    actor.explorer.chance.go_to(tensors["explore.drawn"].numpy())
    return []


def _restore_lanes(parts: Parts, checkpoint: Checkpoint) -> list[str]:
    """World, replay and the writer that joins them. Lanes whose env cannot be brought back begin a new episode."""
    actor = parts.actor
    if actor.history is not None:
        actor.history.set_state({name: tensor.numpy() for name, tensor in under("history.", checkpoint).items()})
    world_state = {name: tensor.numpy() for name, tensor in under("world.", checkpoint).items()}
    exact = parts.world.set_state(world_state or None)
    has_replay = REPLAY_FILE in checkpoint.files
    if has_replay:
        parts.lanes.restore(checkpoint.path_of(REPLAY_FILE))
    actor.writer = parts.lanes.writer(go_on=exact if has_replay else ())
    lost = parts.world.num_lanes - len(exact)
    actor.episodes.forget_running(np.setdiff1d(np.arange(parts.world.num_lanes), exact))
    notes = []
    if lost:
        notes.append(
            f"{lost} of {parts.world.num_lanes} lanes begin a new episode: their env could not be brought back"
        )
    if not has_replay:
        parts.learner.warm_up_again(int(checkpoint.state["steps"]))
        notes.append("the replay was not saved and is collected anew (checkpoint.replay saves it)")
    return notes


def under(prefix: str, checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    """The tensors whose names begin so, by the rest of their names."""
    return {name.removeprefix(prefix): tensor for name, tensor in checkpoint.tensors.items() if name.startswith(prefix)}
