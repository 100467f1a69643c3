"""From observations to actions by a policy that is a distribution, with frozen weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from freewheel.actors.noise import LaneNoise
from freewheel.algos.distributions import Actions
from freewheel.errors import EnvError
from freewheel.nets.actor_critic import ActorCritic
from freewheel.nets.fast_mlp import fast_forward
from freewheel.nets.inputs import as_tensors
from freewheel.spec import MASK

Array = np.ndarray[Any, Any]


class Acted(NamedTuple):
    """One line per row: the action as the env takes it, as it is stored, its log-chance, and the state's value."""

    for_env: Array
    stored: Array
    log_prob: Array
    value: Array


class Sampler:
    """Draws actions. Numbers of `net` belong to whoever bound them; each lane has a stream of chance of its own."""

    def __init__(self, net: ActorCritic, actions: Actions, seed: int, num_lanes: int = 1, first_lane: int = 0) -> None:
        self.net, self.actions = net, actions
        self.noise = LaneNoise(seed, num_lanes, actions.num_noise, is_normal=actions.is_normal, first_lane=first_lane)
        self._fast = fast_forward(net)
        self._mask = None if net.rest is None else f"obs.{MASK}"

    def outputs(self, obs: Mapping[str, Array]) -> Array:
        """[k, num_outputs + 1] of the network."""
        if self._fast is not None:
            return self._fast(obs)
        with torch.inference_mode():
            out: Array = self.net(as_tensors(obs)).numpy()
        return out

    def values(self, obs: Mapping[str, Array]) -> Array:
        return self.outputs(obs)[:, -1]

    def act(self, obs: Mapping[str, Array], lanes: Array) -> Acted:
        out = self.outputs(obs)
        stored, log_prob = self.actions.sample(out[:, :-1], self.noise.draw(lanes))
        return Acted(self.actions.for_env(stored), stored, log_prob, out[:, -1].copy())

    def for_lanes(self, num_lanes: int, seed: int) -> Sampler:
        """The same policy with chance of its own for so many lanes."""
        return Sampler(self.net, self.actions, seed, num_lanes)

    def drawn(self, obs: Mapping[str, Array], lanes: Array) -> Array:
        """An action of each row by chance, as the env takes it."""
        self._check_mask(obs)
        return self.act(obs, lanes).for_env

    def greedy(self, obs: Mapping[str, Array]) -> Array:
        """The likeliest action of each row, as the env takes it."""
        self._check_mask(obs)
        return self.actions.for_env(self.actions.best(self.outputs(obs)[:, :-1]))

    def _check_mask(self, obs: Mapping[str, Array]) -> None:
        if self._mask is not None and (found := first_forbidden(obs[self._mask], self.actions.spans)) is not None:
            raise EnvError(
                f"observation {found[0]} of {len(obs[self._mask])} has {found[1]}. Allow at least one, or end the episode there."
            )


def first_forbidden(mask: Array, spans: Sequence[tuple[int, int]]) -> tuple[int, str] | None:
    """The first row that may take no action at all, and what is wrong with it. Of stacked masks the newest counts."""
    newest = mask.reshape(len(mask), -1)[:, -spans[-1][1] :]
    for first, end in spans:
        allowed = newest[:, first:end].any(1)
        if not allowed.all():
            which = f" among its places {first} to {end - 1}" if len(spans) > 1 else ""
            return int(np.flatnonzero(~allowed)[0]), f"an action_mask without an allowed action{which}"
    return None
