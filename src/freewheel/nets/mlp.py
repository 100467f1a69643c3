"""A body for vectors: linear maps with norm and activation in between."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from freewheel.nets.inputs import Obs, Vector
from freewheel.nets.layers import activation, begin, norm
from freewheel.spec import Space


def dense(num_inputs: int, hidden: Sequence[int], act: str, norm_name: str) -> nn.Sequential:
    """Hidden layers. Each is named by kind and place, so that a norm more or less renames no other layer."""
    layers = nn.Sequential()
    for i, size in enumerate(hidden):
        layers.add_module(f"linear{i}", nn.Linear(num_inputs, size))
        if (normed := norm(norm_name, size)) is not None:
            layers.add_module(f"norm{i}", normed)
        layers.add_module(f"activation{i}", activation(act))
        num_inputs = size
    return layers


class MlpBody(nn.Module):
    """Observations of any space to [B, num_features]."""

    def __init__(
        self,
        space: Space,
        hidden: Sequence[int],
        act: str,
        norm_name: str,
        init: str,
        stack: int = 1,
        rescale: bool = False,
    ) -> None:
        super().__init__()
        self.inputs = Vector(space, stack, rescale)
        self.layers = dense(self.inputs.size, hidden, act, norm_name)
        self.num_features = hidden[-1] if hidden else self.inputs.size
        begin(self, init, act)

    def forward(self, obs: Obs) -> Tensor:
        features: Tensor = self.layers(self.inputs(obs))
        return features
