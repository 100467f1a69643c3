"""Masks of allowed actions: the part `action_mask` of an observation, which policies read and their networks do not see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from freewheel.contracts import Array
from freewheel.errors import ConfigError
from freewheel.nets.inputs import Obs
from freewheel.spec import MASK, Space, leaves

# The logit of a forbidden action: its probability is 0 in float32, and all sums stay finite.
FORBIDDEN = -1e9
# The value of a forbidden action. No other is lower, even where training diverges. Finite, since 0 times infinity is no number.
WORTHLESS = torch.finfo(torch.float32).min
Rows = TypeVar("Rows", Array, Tensor)


def mask_field(obs_space: Space) -> str | None:
    """The name of the mask among the fields of a row, if there is one."""
    return next((f"obs.{name}" for name, _, _ in leaves(obs_space) if name == MASK), None)


def allowed_in(mask: Rows, num_actions: int) -> Rows:
    """Which actions each row allows, bool [B, num_actions]. Of stacked masks the newest counts."""
    allowed: Rows = mask.reshape(len(mask), -1)[:, -num_actions:] != 0
    return allowed


def first_forbidden(mask: Array, spans: Sequence[tuple[int, int]]) -> tuple[int, str] | None:
    """The first row that allows no action, and what is wrong with it. Of stacked masks the newest counts."""
    allowed = allowed_in(mask, spans[-1][1])
    for first, end in spans:
        has_one = allowed[:, first:end].any(1)
        if not has_one.all():
            which = f" among its places {first} to {end - 1}" if len(spans) > 1 else ""
            return int(np.flatnonzero(~has_one)[0]), f"an action_mask without an allowed action{which}"
    return None


def unless_forbidden(out: Tensor, values: Tensor) -> Tensor:
    """WORTHLESS where the network's output is, and these values elsewhere."""
    return torch.where(out > WORTHLESS, values, WORTHLESS)


def without_mask(space: Space) -> tuple[Space, str | None]:
    """What a network sees, and its name in the Dict: "" if it has several parts, None if there is no mask."""
    if not isinstance(space, spaces.Dict) or MASK not in space.spaces:
        return space, None
    others = {name: part for name, part in space.spaces.items() if name != MASK}
    if len(others) != 1:
        return spaces.Dict(others), ""
    ((name, part),) = others.items()
    return (spaces.Dict(others), "") if isinstance(part, (spaces.Dict, spaces.Tuple)) else (part, name)


def seen_of(space: Space, num_actions: int) -> tuple[Space, str | None]:
    """`without_mask`, after a look at the mask of so many actions, 0 if they are not discrete."""
    seen, rest = without_mask(space)
    if rest is not None and isinstance(space, spaces.Dict):
        mask = space.spaces[MASK]
        size = int(np.prod(mask.shape or (), dtype=np.int64))
        if not num_actions or not isinstance(mask, (spaces.Box, spaces.MultiBinary)) or size != num_actions:
            wants = (
                f"must be a Box or MultiBinary of {num_actions} numbers" if num_actions else "needs discrete actions"
            )
            raise ConfigError(
                f"the observation's part {MASK!r} is {mask}; an action mask {wants}. Rename it if it is not a mask."
            )
        if len(space.spaces) == 1:
            raise ConfigError(f"the observation has only the part {MASK!r}: the policy needs something else to see.")
    return seen, rest


class MaskedNet(nn.Module):
    """A network of action values that sees the observation without its mask; the outputs for forbidden actions are WORTHLESS.

    So the best action is an allowed one, whoever looks for it: actors, targets, a loss of the user's own. Where a mask allows nothing,
    as that of a final state may, the values stay as they are.
    """

    def __init__(self, net: Any, rest: str) -> None:
        super().__init__()
        self.net, self.rest = net, rest
        self.num_noise, self.num_actions, self.first_action = net.num_noise, net.num_actions, net.first_action

    def forward(self, obs: Obs, noise: Tensor | None = None, taus: Tensor | None = None) -> Tensor:
        assert isinstance(obs, dict)
        seen = obs[self.rest] if self.rest else {name: part for name, part in obs.items() if name != MASK}
        out: Tensor = self.net(seen, noise, taus).float()
        allowed = allowed_in(obs[MASK], self.num_actions)
        allowed = allowed | ~allowed.any(1, keepdim=True)
        return torch.where(allowed.reshape(*allowed.shape, *[1] * (out.ndim - 2)), out, WORTHLESS)
