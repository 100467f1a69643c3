"""Acting with linear maps in whole numbers of 8 bits: weights by output, inputs by batch. The learner knows nothing of it."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from freewheel.errors import ConfigError

LEVELS = 127  # of either sign


class Int8Linear(nn.Module):
    """In place of a linear map, whose numbers it follows at each `refresh`."""

    def __init__(self, source: nn.Linear) -> None:
        super().__init__()
        self._source = [source]  # in a list: no module of ours
        self.refresh()

    def refresh(self) -> None:
        source = self._source[0]
        weight = source.weight.detach()
        scales = (weight.abs().amax(1) / LEVELS).clamp(min=1e-12).double()
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # torch will drop this kind of tensor one day; until then nothing else is as fast
            whole = torch.quantize_per_channel(
                weight, scales, torch.zeros(len(scales), dtype=torch.int64), 0, torch.qint8
            )
        self._packed = torch.ops.quantized.linear_prepack(whole, source.bias)

    def forward(self, x: Tensor) -> Tensor:
        # Sums of full 8-bit products overflow on older CPUs: inputs have 7 bits.
        out: Tensor = torch.ops.quantized.linear_dynamic(x, self._packed, True)
        return out


def quantized(net: nn.Module) -> tuple[nn.Module, Callable[[], None]]:
    """A copy that acts in int8, and what makes it follow the numbers of `net`. Convolutions stay as they are."""
    memo = {id(tensor): tensor for tensor in (*net.parameters(), *net.buffers())}
    made = copy.deepcopy(net, memo)  # the same tensors: what is no linear map follows by itself
    follows: list[Int8Linear] = []
    for name, module in list(made.named_modules()):
        if type(module) is nn.Linear:
            follows.append(_replace(made, name, module))
    if not follows:
        raise ConfigError("local.act_precision=int8: the network has no linear map of torch's own. Leave it out.")

    def refresh() -> None:
        for layer in follows:
            layer.refresh()

    return made, refresh


def _replace(net: nn.Module, name: str, module: nn.Linear) -> Int8Linear:
    parent, _, own = name.rpartition(".")
    try:
        layer = Int8Linear(module)
    except RuntimeError as error:
        raise ConfigError(
            f"local.act_precision=int8 does not run on this machine ({str(error).splitlines()[0]}). Leave it out."
        ) from error
    setattr(net.get_submodule(parent), own, layer)
    return layer
