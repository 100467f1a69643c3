"""A trained policy on its own: no run, no replay, no env."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from freewheel.actors.actor import History
from freewheel.algos.make import make_algo
from freewheel.config import Config, from_dict
from freewheel.contracts import Policy as Acting
from freewheel.contracts import Spaces
from freewheel.errors import CheckpointError, ConfigError, EnvError
from freewheel.nets.flat import Flat
from freewheel.spec import RowSpec, flatten, read_space, unflatten
from freewheel.store.checkpoint import Checkpoint, list_checkpoints, load, load_newest
from freewheel.store.folder import DEFAULT_ROOT, RunFolder, open_run

Array = np.ndarray[Any, Any]


@dataclass
class Trained:
    """An algorithm with the weights that it has learned."""

    algo: Any
    net: nn.Module
    config: Config

    def acting(self, num_lanes: int, seed: int) -> Acting:
        """A policy for so many lanes."""
        made: Acting = self.algo.policy(self.net, lambda stream: seed, range(num_lanes), num_lanes)
        return made


class Policy:
    """Acts greedily: `act` takes an observation as the env gives it, or a batch of them, and gives what `step` takes.

    Where the network sees several observations at once (world.stack), it keeps the last ones itself: call `reset` when an
    episode begins.
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
        """The best action by the network's values, or the likeliest by its policy; an array of them for a batch."""
        fields = flatten("obs", self.obs_space, obs)
        one = {field.name: field.shape for field in self._fields if field.is_observation}
        extra = {rows.ndim - len(one[name]) for name, rows in fields.items()}
        if extra - {0, 1} or len(extra) != 1 or any(rows.shape[-len(s) :] != s for s, rows in _shapes(one, fields)):
            shapes = {name: rows.shape for name, rows in fields.items()}
            raise ConfigError(
                f"the policy takes observations of shape {one}, or a batch of them; it was given {shapes}."
            )
        is_single = extra == {0}
        batch = {name: np.ascontiguousarray(rows[None] if is_single else rows) for name, rows in fields.items()}
        seen = self._stacked(batch)
        if (refused := self._acting.refuse(batch)) is not None:
            raise EnvError(f"observation {refused[0]} has {refused[1]}. Allow at least one, or end the episode there.")
        actions = unflatten("action", self.action_space, self._acting.greedy(seen))
        if not is_single:
            return actions
        return _first(actions)

    def _stacked(self, batch: dict[str, Array]) -> dict[str, Array]:
        if self.config.world.stack == 1:
            return batch
        count = len(next(iter(batch.values())))
        if self._history is None or self._is_first:
            self._history = History(self._fields, count, self.config.world.stack)
        first = np.full(count, self._is_first)
        self._is_first = False
        return self._history.push(np.arange(count), batch, first)


def _shapes(one: dict[str, tuple[int, ...]], fields: dict[str, Array]) -> list[tuple[tuple[int, ...], Array]]:
    return [(shape, fields[name]) for name, shape in one.items() if shape]


def load_policy(path: str | Path, root: Path = DEFAULT_ROOT, body: Any = None, name: str = "") -> Policy:
    """The policy of a run (its newest whole checkpoint), by name or path, or of one checkpoint by its path.

    Of a run with several policies, the one called `name`.
    """
    return policy_of(find_checkpoint(path, root, name), body, name)


def find_checkpoint(path: str | Path, root: Path = DEFAULT_ROOT, name: str = "") -> Checkpoint:
    if (Path(path) / "manifest.json").is_file():
        return load(Path(path), with_files=False)
    folder = open_run(path, root)
    names = policy_names(folder)
    if name not in names:
        have = f"the policies {', '.join(names)}; name one of them" if names != [""] else "one policy, without a name"
        raise CheckpointError(f"run {folder.name} has {have}.")
    return load_newest(find_folder(folder.checkpoints, name), with_files=False)


def policy_names(folder: RunFolder) -> list[str]:
    """Of a run's policies, in the order of the groups that they play; "" where there is only one."""
    return list(folder.config().get("policies") or [""])


def find_folder(checkpoints: Path, name: str) -> Path:
    """Where the newest checkpoint with a policy lies: with all policies of the run, or by itself."""
    own = checkpoints / name
    if not name or not own.is_dir():
        return checkpoints
    found = [path for folder in (checkpoints, own) for path in list_checkpoints(folder)]
    return max(found, key=lambda path: path.name).parent if found else own


def policy_of(checkpoint: Checkpoint, body: Any = None, name: str = "") -> Policy:
    """`body` is the network that the run was given as an object: a checkpoint holds its numbers, not its code."""
    try:
        tensors, state = part_of_name(checkpoint, name)
        config = from_dict(state["config"])
        obs_space, action_space = (read_space(state[key]) for key in ("obs_space", "action_space"))
    except (KeyError, TypeError, ValueError, ConfigError) as error:
        raise CheckpointError(f"checkpoint {checkpoint.path} is not one of a policy: {error}.") from error
    algo = make_algo(config, Spaces(obs_space, action_space, config.world.lanes), body=body)
    _restore(algo.net, tensors, checkpoint.path)
    return Policy(Trained(algo, algo.net, config))


def part_of_name(checkpoint: Checkpoint, name: str) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Tensors and state of one policy."""
    own = checkpoint.state.get("policies")
    if own is None:
        return checkpoint.tensors, checkpoint.state
    if name not in own:
        raise CheckpointError(f"checkpoint {checkpoint.path} has the policies {', '.join(own)}; name one of them.")
    return under(f"{name}/", checkpoint.tensors), own[name]


def under(prefix: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors whose names begin so, by the rest of their names."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _restore(net: nn.Module, tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    flat = Flat(net)
    weights = flat.vector(net)
    own = {f"net.{name}": view for name, view in flat.views(weights).items()}
    restore_weights(own, tensors, path)
    flat.bind(net, weights).eval().requires_grad_(False)


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


def _first(actions: Any) -> Any:
    """The first of a batch of actions, as `step` takes it."""
    if isinstance(actions, dict):
        return {name: _first(part) for name, part in actions.items()}
    if isinstance(actions, tuple):
        return tuple(_first(part) for part in actions)
    return actions[0].item() if actions.ndim == 1 else actions[0]
