"""A policy that is a distribution: actions are drawn from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from freewheel.actors.noise import LaneNoise
from freewheel.contracts import Array, Choice, Columns, ColumnSpec
from freewheel.memory.lanes import as_tensors
from freewheel.nets.actor_critic import ActorCritic
from freewheel.nets.distributions import Actions
from freewheel.nets.fast_mlp import fast_forward


class SamplePolicy:
    """Draws actions from `actions`, by the outputs [k, num_outputs] of a network; each lane has a stream of chance of its own.

    With `has_value` the network's last output is the state's value, and rows get it and the log-chance of the action.
    `mask` names the field of allowed actions.
    """

    epsilon = None

    def __init__(
        self,
        net: nn.Module,
        actions: Actions,
        seed: int,
        num_lanes: int = 1,
        first_lane: int = 0,
        *,
        mask: str | None = None,
        has_value: bool = True,
    ) -> None:
        self.actions, self._mask, self._has_value = actions, mask, has_value
        self.noise = LaneNoise(seed, num_lanes, actions.num_noise, is_normal=actions.is_normal, first_lane=first_lane)
        number: ColumnSpec = ("float32", ())
        self.extra: Mapping[str, ColumnSpec] = {"log_prob": number, "value": number} if has_value else {}
        self.refresh: Callable[[], None] = _nothing  # where another network follows the weights
        self.use(net)

    def use(self, net: nn.Module) -> None:
        """Acts by this network from now on."""
        self.net = net
        self._fast: Callable[[Mapping[str, Array]], Array] | None = (
            fast_forward(net) if isinstance(net, ActorCritic) else None
        )
        self._device = next((tensor.device for tensor in net.parameters()), torch.device("cpu"))

    def outputs(self, obs: Mapping[str, Array]) -> Array:
        if self._fast is not None:
            return self._fast(obs)
        with torch.inference_mode():
            seen = as_tensors(obs)
            if self._device.type != "cpu":
                seen = (
                    seen.to(self._device)
                    if isinstance(seen, torch.Tensor)
                    else {n: t.to(self._device) for n, t in seen.items()}
                )
            out: Array = self.net(seen).float().cpu().numpy()
        return out

    def choose(self, obs: Columns, lanes: Array, first: Array, step: int) -> Choice:
        out = self.outputs(obs)
        if not self._has_value:
            stored, _ = self.actions.sample(out, self.noise.draw(lanes))
            return Choice({"action": self.actions.for_env(stored)}, {"action": stored})
        stored, log_prob = self.actions.sample(out[:, :-1], self.noise.draw(lanes))
        columns = {"action": stored, "log_prob": log_prob, "value": out[:, -1].copy()}
        return Choice({"action": self.actions.for_env(stored)}, columns)

    def greedy(self, obs: Columns) -> Columns:
        """The likeliest actions."""
        out = self.outputs(obs)
        return {"action": self.actions.for_env(self.actions.best(out[:, :-1] if self._has_value else out))}

    def bootstrap(self, obs: Columns) -> Array | None:
        return self.outputs(obs)[:, -1] if self._has_value else None

    def refuse(self, obs: Columns) -> tuple[int, str] | None:
        return None if self._mask is None else first_forbidden(obs[self._mask], self.actions.spans)

    def state(self) -> dict[str, Any]:
        return {"random.drawn": self.noise.drawn}

    def set_state(self, state: Mapping[str, Any]) -> list[str]:
        self.noise.go_to(np.asarray(state["random.drawn"]))
        return []


def first_forbidden(mask: Array, spans: Sequence[tuple[int, int]]) -> tuple[int, str] | None:
    """The first row that may take no action at all, and what is wrong with it. Of stacked masks the newest counts."""
    newest = mask.reshape(len(mask), -1)[:, -spans[-1][1] :]
    for first, end in spans:
        allowed = newest[:, first:end].any(1)
        if not allowed.all():
            which = f" among its places {first} to {end - 1}" if len(spans) > 1 else ""
            return int(np.flatnonzero(~allowed)[0]), f"an action_mask without an allowed action{which}"
    return None


def _nothing() -> None:
    """The network is bound to the weights themselves."""
