"""The memory that a network takes, counted while it is built: one that cannot fit is refused before its memory is taken."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from freewheel.config import NetConfig
from freewheel.errors import ConfigError, shown
from freewheel.memory.segment import allowed_bytes, format_bytes
from freewheel.spec import Space

# Of every weight during a training: itself, its gradient, two moments of Adam, and three versions for the actors.
IN_TRAINING = 7
# What layers make their weights with.
MAKES = {torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn}


class Budget(TorchFunctionMode):
    """While it is entered, tensors are counted before they are made, each `copies` times."""

    def __init__(self, net: NetConfig, spaces: Mapping[str, Space], copies: int) -> None:
        super().__init__()
        self._sizes = {"net.hidden": net.hidden, "net.channels": net.channels, **spaces}
        self._copies, self._num_weights = copies, 0
        self._allowed, self._source = allowed_bytes()

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in MAKES:
            size = kwargs.get("size", args)
            self._count(math.prod(size[0] if size and isinstance(size[0], Sequence) else size))
        return func(*args, **kwargs)

    def _count(self, num_weights: int) -> None:
        self._num_weights += num_weights
        needed = self._num_weights * 4 * self._copies
        if needed > self._allowed:
            times = f" kept {self._copies} times" if self._copies > 1 else ""
            sizes = ", ".join(f"{name}={shown(value)}" for name, value in self._sizes.items())
            raise ConfigError(
                f"the network needs at least {format_bytes(needed)} ({self._num_weights:,} weights{times}), {self._source} "
                f"allows {format_bytes(self._allowed)}. Make it smaller; it has {sizes}."
            )
