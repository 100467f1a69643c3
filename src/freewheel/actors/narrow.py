"""Acting in fewer bits, or on a device of its own: another network that follows the weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn

from freewheel.actors.bf16 import narrowed
from freewheel.actors.compare import Compared, speed_of
from freewheel.actors.int8 import quantized
from freewheel.actors.on_device import placed
from freewheel.contracts import Array, Policy
from freewheel.nets.inputs import any_observations
from freewheel.spec import Space


def act_on(policy: Policy, net: nn.Module, vector: Tensor, device: str) -> None:
    """The policy acts by a copy of the network on the device from now on."""
    made, policy.refresh = placed(net, vector, device)
    policy.use(made)


def act_in(
    policy: Policy, net: nn.Module, bits: str, space: Space, stack: int, lanes: int, least_gain: float
) -> Compared | None:
    """The policy acts in int8 or bf16 from now on, if that is so many times as fast; what it gives and costs, if it does."""
    made, refresh = quantized(net) if bits == "int8" else narrowed(net)
    seen = {name: rows.numpy() for name, rows in any_observations(space, stack, max(lanes, 32)).items()}
    few = {name: rows[:lanes] for name, rows in seen.items()}

    def by(one: nn.Module, obs: Mapping[str, Array]) -> Mapping[str, Array]:
        policy.use(one)
        return policy.greedy(dict(obs))

    same = _agreement(by(net, seen), by(made, seen))
    found = Compared(speed_of(lambda: by(net, few), lambda: by(made, few)), same)
    if found.speed < least_gain:
        policy.use(net)
        return None
    policy.use(made)
    policy.refresh = refresh
    return found


def _agreement(plain: Mapping[str, Array], narrow: Mapping[str, Array]) -> float:
    """The share of rows whose best action is the same."""
    same: Any = np.ones(len(next(iter(plain.values()))), np.bool_)
    for name, actions in plain.items():
        same &= (actions == narrow[name]).reshape(len(actions), -1).all(1)
    return float(same.mean())
