"""A trained policy on its own: no run, no replay, no env."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from freewheel.actors.history import History
from freewheel.actors.infer import Acts, Infer
from freewheel.actors.sample import Sampler
from freewheel.algos.make import make_algo
from freewheel.config import ON_POLICY, Config, from_dict
from freewheel.errors import CheckpointError, ConfigError
from freewheel.nets.build import build_net
from freewheel.nets.flat import Flat
from freewheel.run.checkpoint import Checkpoint, load, load_newest
from freewheel.run.folder import DEFAULT_ROOT, open_run
from freewheel.run.on_policy_parts import build_actor
from freewheel.run.state import restore_weights
from freewheel.spec import RowSpec, flatten, read_space

Array = np.ndarray[Any, Any]


class Policy:
    """Acts greedily: `act` takes an observation as the env gives it, or a batch of them, and gives what `step` takes.

    Where the network sees several observations at once (world.stack), it keeps the last ones itself: call `reset` when an
    episode begins.
    """

    def __init__(self, infer: Acts, config: Config, obs_space: Any, action_space: Any) -> None:
        self.infer, self.config = infer, config
        self.obs_space, self.action_space = obs_space, action_space
        self._fields = RowSpec.of(obs_space, action_space).fields
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
        actions = self.infer.greedy(self._stacked(batch))
        if not is_single:
            return actions
        return actions[0].item() if actions.ndim == 1 else actions[0]

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


def load_policy(path: str | Path, root: Path = DEFAULT_ROOT, body: Any = None) -> Policy:
    """The policy of a run (its newest whole checkpoint), by name or path, or of one checkpoint by its path."""
    return policy_of(find_checkpoint(path, root), body)


def find_checkpoint(path: str | Path, root: Path = DEFAULT_ROOT) -> Checkpoint:
    if (Path(path) / "manifest.json").is_file():
        return load(Path(path), with_files=False)
    return load_newest(open_run(path, root).checkpoints, with_files=False)


def policy_of(checkpoint: Checkpoint, body: Any = None) -> Policy:
    """`body` is the network that the run was given as an object: a checkpoint holds its numbers, not its code."""
    try:
        config = from_dict(checkpoint.state["config"])
        obs_space, action_space = (read_space(checkpoint.state[name]) for name in ("obs_space", "action_space"))
    except (KeyError, TypeError, ValueError, ConfigError) as error:
        raise CheckpointError(f"checkpoint {checkpoint.path} is not one of a policy: {error}.") from error
    if config.algo in ON_POLICY:
        actor, actions = build_actor(config, obs_space, action_space, body)
        _restore(actor, checkpoint)
        return Policy(Sampler(actor, actions, seed=0), config, obs_space, action_space)
    net = build_net(obs_space, action_space, config.net, config.q, config.algo, config.world.stack, body=body)
    algo = make_algo(config.algo, config.q, net)
    _restore(net, checkpoint)
    return Policy(Infer(net, algo, action_space.dtype, seed=0), config, obs_space, action_space)


def _restore(net: nn.Module, checkpoint: Checkpoint) -> None:
    flat = Flat(net)
    weights = flat.vector(net)
    own = {f"net.{name}": view for name, view in flat.views(weights).items()}
    restore_weights(own, checkpoint.tensors, checkpoint.path)
    flat.bind(net, weights).eval().requires_grad_(False)
