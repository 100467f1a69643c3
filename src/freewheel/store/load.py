"""Loads checkpoints: a trained policy without its run, replay and env, or the state of a run to resume."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from freewheel.actors.actor import History
from freewheel.algos.make import make_algo
from freewheel.config import Config, from_dict
from freewheel.contracts import Array, Spaces
from freewheel.contracts import Policy as Acting
from freewheel.errors import CheckpointError, ConfigError, EnvError
from freewheel.nets.flat import Flat
from freewheel.spec import RowSpec, flatten, read_space, unflatten
from freewheel.store.checkpoint import MANIFEST, Checkpoint, list_checkpoints, load, load_newest
from freewheel.store.folder import DEFAULT_ROOT, open_run


@dataclass
class Trained:
    """An algorithm with its trained network; `body` is the network that the user gave as an object, if any."""

    algo: Any
    net: nn.Module
    config: Config
    body: Any = None

    def __reduce__(self) -> Any:
        """It goes to another process as settings and weights: networks and losses may hold what cannot."""
        weights = Flat(self.net).vector(self.net).cpu().numpy()
        return _made_again, (self.config, self.algo.spaces, self.body, weights)

    def acting(self, num_lanes: int, seed: int) -> Acting:
        """The policy for `num_lanes` lanes."""
        made: Acting = self.algo.policy(self.net, lambda stream: seed, range(num_lanes), num_lanes)
        return made


def _made_again(config: Config, spaces: Spaces, body: Any, weights: Array) -> Trained:
    algo = make_algo(config, spaces, body=body)
    net = Flat(algo.net).bind(algo.net, torch.from_numpy(weights)).eval().requires_grad_(False)
    return Trained(algo, net, config, body)


class Policy:
    """Acts greedily: `act` takes an observation of the env, or a batch of them, and returns what `step` takes.

    With world.stack the policy keeps the last observations itself: call `reset` when an episode begins.
    """

    def __init__(self, trained: Trained) -> None:
        self.trained, self.config = trained, trained.config
        self.obs_space, self.action_space = trained.algo.spaces.obs, trained.algo.spaces.action
        self._acting = trained.acting(1, 0)
        self._fields = RowSpec.of(self.obs_space, self.action_space).fields
        self._history: History | None = None
        self._is_first = True

    def reset(self) -> None:
        """An episode begins."""
        self._is_first = True

    def act(self, obs: Any) -> Any:
        """The greedy action, or an array of them for a batch: the best by value, or the likeliest of a stochastic policy."""
        rows = flatten("obs", self.obs_space, obs)
        shapes = {field.name: field.shape for field in self._fields if field.is_observation}
        ranks = {column.ndim - len(shapes[name]) for name, column in rows.items()}
        is_wrong = any(column.shape[column.ndim - len(shapes[name]) :] != shapes[name] for name, column in rows.items())
        if ranks not in ({0}, {1}) or is_wrong:
            raise ConfigError(
                f"the policy takes observations of shape {shapes}, or a batch of them; it was given "
                f"{ {name: column.shape for name, column in rows.items()} }."
            )
        is_single = ranks == {0}
        batch = {name: np.ascontiguousarray(column[None] if is_single else column) for name, column in rows.items()}
        seen = self._stacked(batch)
        if (refused := self._acting.refuse(batch)) is not None:
            raise EnvError(f"observation {refused[0]} has {refused[1]}. Allow at least one, or end the episode there.")
        actions = self._acting.greedy(seen)
        if is_single:  # as `step` takes it
            actions = {name: rows[0].item() if rows.ndim == 1 else rows[0] for name, rows in actions.items()}
        return unflatten("action", self.action_space, actions)

    def _stacked(self, batch: dict[str, Array]) -> dict[str, Array]:
        if self.config.world.stack == 1:
            return batch
        count = len(next(iter(batch.values())))
        if self._history is None or self._is_first:
            self._history = History(self._fields, count, self.config.world.stack)
        first = np.full(count, self._is_first)
        self._is_first = False
        return self._history.push(np.arange(count), batch, first)


def load_policy(path: str | Path, root: Path = DEFAULT_ROOT, body: Any = None, name: str = "") -> Policy:
    """The policy of a run (its newest complete checkpoint), by name or path, or of one checkpoint by its path.

    For a run with several policies, `name` says which one.
    """
    return policy_of(find_checkpoint(path, root, name), body, name)


def find_checkpoint(path: str | Path, root: Path = DEFAULT_ROOT, name: str = "") -> Checkpoint:
    if (Path(path) / MANIFEST).is_file():
        return load(Path(path), with_files=False)
    folder, names = open_run(path, root), policy_names(path, root)
    if name not in names:
        have = f"the policies {', '.join(names)}; name one of them" if names != [""] else "one policy, without a name"
        raise CheckpointError(f"run {folder.name} has {have}.")
    return load_newest(find_folder(folder.checkpoints, name), with_files=False)


def policy_names(path: str | Path, root: Path = DEFAULT_ROOT) -> list[str]:
    """The policies of a run or of one checkpoint, in the order of the groups that they play; "" for a single policy."""
    if (Path(path) / MANIFEST).is_file():
        return list(load(Path(path), with_files=False).state.get("policies") or [""])
    return list(open_run(path, root).config().get("policies") or [""])


def find_folder(checkpoints: Path, name: str) -> Path:
    """The folder with the newest checkpoint of a policy: the run's, with all policies, or the policy's own."""
    own = checkpoints / name
    if not name or not own.is_dir():
        return checkpoints
    found = [path for folder in (checkpoints, own) for path in list_checkpoints(folder)]
    return max(found, key=lambda path: path.name).parent if found else own


def policy_of(checkpoint: Checkpoint, body: Any = None, name: str = "") -> Policy:
    """`body` is the network that the run was given as an object: a checkpoint holds its weights, not its code."""
    try:
        tensors, state = part_of(checkpoint, name)
        config = from_dict(state["config"])
        obs_space, action_space = (read_space(state[key]) for key in ("obs_space", "action_space"))
    except (KeyError, TypeError, ValueError, ConfigError) as error:
        raise CheckpointError(f"checkpoint {checkpoint.path} has no policy: {error}.") from error
    algo = make_algo(config, Spaces(obs_space, action_space, config.world.lanes), body=body)
    flat = Flat(algo.net)
    weights = flat.vector(algo.net)
    own = {f"net.{name}": view for name, view in flat.views(weights).items()}
    restore_weights(own, tensors, checkpoint.path)
    return Policy(Trained(algo, flat.bind(algo.net, weights).eval().requires_grad_(False), config, body))


def part_of(checkpoint: Checkpoint, name: str) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Tensors and state of one policy."""
    own = checkpoint.state.get("policies")
    if own is None:
        return checkpoint.tensors, checkpoint.state
    if name not in own:
        raise CheckpointError(f"checkpoint {checkpoint.path} has the policies {', '.join(own)}; name one of them.")
    return under(f"{name}/", checkpoint.tensors), own[name]


def under(prefix: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors whose names begin with `prefix`, by the rest of their names."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def restore_weights(own: Mapping[str, torch.Tensor], saved: Mapping[str, torch.Tensor], path: Path) -> None:
    """Copies saved tensors into the run's own. All of them must exist in the same shape."""
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


def load_run(checkpoints: Path, policies: Sequence[str] = ()) -> Checkpoint:
    """The newest state of a run. Policies that were saved separately are put together, each from its newest checkpoint."""
    folders = {name: find_folder(checkpoints, name) for name in policies}
    if all(folder == checkpoints for folder in folders.values()):
        return load_newest(checkpoints)
    parts = {name: load_newest(folder) for name, folder in folders.items()}
    tensors, states, files = dict[str, torch.Tensor](), dict[str, Any](), dict[str, Path]()
    for name, part in parts.items():
        own, states[name] = part_of(part, name)
        tensors |= {f"{name}/{key}": tensor for key, tensor in own.items()}
        prefix = "" if "policies" in part.state else f"{name}-"
        files |= {f"{prefix}{file}": path for file, path in part.files.items()}
    merged = {
        "policies": states,
        "steps": sum(int(own["own_steps"]) for own in states.values()),
        "updates": sum(int(own["updates"]) for own in states.values()),
        "seconds": max(float(part.state["seconds"]) for part in parts.values()),
    }
    newest = max(parts.values(), key=lambda part: part.step)
    warnings = tuple(dict.fromkeys(warning for part in parts.values() for warning in part.warnings))
    return replace(newest, tensors=tensors, state=merged, files=files, warnings=warnings)
