"""From observations to actions, with frozen weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from freewheel.actors.noise import LaneShares
from freewheel.memory.lanes import as_tensors
from freewheel.nets.heads import midpoints
from freewheel.worlds.seeds import lane_key

Array = np.ndarray[Any, Any]


class HasValues(Protocol):
    """How a network's outputs become action values, and what its passes to act by take."""

    num_act_noise: int  # normals for all rows
    num_act_taus: int  # fractions for each row
    first_action: int

    def q_values(self, out: Tensor) -> Tensor: ...


class Infer:
    """A network in evaluation mode and how its values become actions. Numbers of `net` belong to whoever bound them.

    Each lane draws its quantile fractions by itself. `noise` feeds noisy layers: one draw of the weights for all lanes that are ready
    together, since each draw is a network of its own, and one for each lane would be as many forward passes.
    """

    def __init__(
        self, net: nn.Module, algo: HasValues, action_dtype: Any, seed: int, num_lanes: int = 1, first_lane: int = 0
    ) -> None:
        self.algo = algo
        self._dtype = np.dtype(action_dtype)
        self.use(net)
        # Actors of one run, which have other lanes, must not be blurred alike.
        self.noise = torch.Generator().manual_seed(lane_key(seed, first_lane) >> 1 if first_lane else seed)
        self.taus = LaneShares(seed, num_lanes, algo.num_act_taus, first_lane)

    def use(self, net: nn.Module) -> None:
        """Acts by this network from now on."""
        self.net = net
        self._device = next((tensor.device for tensor in net.parameters()), torch.device("cpu"))

    def values(self, obs: Mapping[str, Array], lanes: Array | None = None) -> Tensor:
        """Action values [k, A] as these lanes would draw them; without lanes the greedy policy's."""
        count = len(next(iter(obs.values())))
        with torch.inference_mode():
            draws: Any = self._midpoints(count) if lanes is None else self._draws(lanes)
            seen: Any = as_tensors(obs)
            if self._device.type != "cpu":
                seen, draws = _moved(seen, self._device), _moved(draws, self._device)
            return self.algo.q_values(self.net(seen, draws["noise"], draws["taus"])).cpu()

    def act(self, obs: Mapping[str, Array], lanes: Array, explores: Array, tried: Array) -> Array:
        """The best action of each row, or the place that was tried where it explores."""
        if explores.all():
            if self.algo.num_act_taus:
                self.taus.skip(lanes)  # whether the others explore must not move what a lane draws next
            return self._numbered(tried)
        best = self.values(obs, lanes).argmax(1).numpy()
        return self._numbered(np.where(explores, tried, best))

    def _draws(self, lanes: Array) -> dict[str, Tensor | None]:
        algo = self.algo
        return {
            "noise": torch.randn(algo.num_act_noise, generator=self.noise) if algo.num_act_noise else None,
            "taus": torch.from_numpy(self.taus.draw(lanes)).float() if algo.num_act_taus else None,
        }

    def _midpoints(self, count: int) -> dict[str, Tensor | None]:
        num_taus = self.algo.num_act_taus
        return {"noise": None, "taus": midpoints(num_taus).expand(count, -1) if num_taus else None}

    def greedy(self, obs: Mapping[str, Array]) -> Array:
        return self._numbered(self.values(obs).argmax(1).numpy())

    def _numbered(self, places: Array) -> Array:
        return (places + self.algo.first_action).astype(self._dtype)


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, dict):
        return {name: _moved(part, device) for name, part in value.items()}
    return value if value is None else value.to(device)
