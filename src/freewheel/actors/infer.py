"""From observations to actions, with frozen weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from freewheel.algos.algo import Algo
from freewheel.nets.inputs import as_tensors

Array = np.ndarray[Any, Any]


class Acts(Protocol):
    """Whoever can play for itself: the best actions for rows of observations, as the env takes them."""

    def greedy(self, obs: Mapping[str, Array]) -> Array: ...


class Infer:
    """A network in evaluation mode and how its values become actions. Numbers of `net` belong to whoever bound them.

    `noise` feeds noisy layers and quantile fractions.
    """

    def __init__(self, net: nn.Module, algo: Algo, action_dtype: Any, seed: int) -> None:
        self.net, self.algo = net, algo
        self._dtype = np.dtype(action_dtype)
        self._device = next((tensor.device for tensor in net.parameters()), torch.device("cpu"))
        self.noise = torch.Generator().manual_seed(seed)

    def values(self, obs: Mapping[str, Array], is_greedy: bool = False) -> Tensor:
        """Action values [k, A]; without noise when greedy."""
        count = len(next(iter(obs.values())))
        with torch.inference_mode():
            draws = self.algo.act_draws(count, None if is_greedy else self.noise)
            seen: Any = as_tensors(obs)
            if self._device.type != "cpu":
                seen, draws = _moved(seen, self._device), _moved(draws, self._device)
            return self.algo.q_values(self.net(seen, draws["noise"], draws["taus"])).cpu()

    def act(self, obs: Mapping[str, Array], explores: Array, tried: Array) -> Array:
        """The best action of each row, or the place that was tried where it explores."""
        if explores.all():
            return self._numbered(tried)
        best = self.values(obs).argmax(1).numpy()
        return self._numbered(np.where(explores, tried, best))

    def greedy(self, obs: Mapping[str, Array]) -> Array:
        return self._numbered(self.values(obs, is_greedy=True).argmax(1).numpy())

    def _numbered(self, places: Array) -> Array:
        return (places + self.algo.first_action).astype(self._dtype)


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, dict):
        return {name: _moved(part, device) for name, part in value.items()}
    return value if value is None else value.to(device)
