"""Acting on a device of its own: a copy of the network there, which follows the numbers that were fetched."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from freewheel.nets.flat import Flat


def placed(net: nn.Module, vector: Tensor, device: torch.device | str) -> tuple[nn.Module, Callable[[], None]]:
    """A copy on the device of a network that is bound to the vector, and what makes it follow that: one copy."""
    flat = Flat(net)
    made = copy.deepcopy(net).to(device)
    there = flat.vector(made)
    flat.bind(made, there).eval().requires_grad_(False)

    def refresh() -> None:
        there.copy_(vector)

    return made, refresh
