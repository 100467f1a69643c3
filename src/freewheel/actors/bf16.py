"""Acting in bf16: products of half the bytes, where the machine has them. The learner knows nothing of it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from freewheel.nets.inputs import set_memory_format

NARROW = (nn.Linear, nn.Conv2d)


class Bf16Net(nn.Module):
    """A network whose products are narrow: their weights are kept so, as to convert them in each pass would take longer than they do."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, *given: Any) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            out: Tensor = self.net(*given)
        return out.float()


def narrowed(net: nn.Module) -> tuple[nn.Module, Callable[[], None]]:
    """A copy that acts in bf16, and what makes it follow the numbers of `net`. What is no product stays as it is."""
    memo = {id(tensor): tensor for tensor in (*net.parameters(), *net.buffers())}
    made = copy.deepcopy(net, memo)  # the same tensors: what is no product follows by itself
    set_memory_format(made, "channels_last")
    pairs: list[tuple[Tensor, Tensor]] = []
    for module in made.modules():
        if type(module) in NARROW:
            for name, wide in list(module.named_parameters(recurse=False)):
                own = nn.Parameter(wide.detach().to(torch.bfloat16, copy=True), requires_grad=False)
                setattr(module, name, own)
                pairs.append((own, wide))

    def refresh() -> None:
        for own, wide in pairs:
            own.copy_(wide)

    return Bf16Net(made), refresh
