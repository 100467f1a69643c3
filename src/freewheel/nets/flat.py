"""A network's parameters and buffers as one flat float32 vector, which is updated, published and fetched."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from freewheel.errors import ConfigError


class Flat:
    """Where each parameter and buffer of a network lies in the vector: parameters first, then buffers.

    Float buffers (the statistics of BatchNorm) are part of it, so they are published with the weights; the optimiser changes the
    first `num_params` numbers. Other buffers, and those with infinities, are constants of the network and stay in it.
    """

    def __init__(self, net: nn.Module) -> None:
        params = dict(net.named_parameters())
        buffers = {name: tensor for name, tensor in net.named_buffers() if _travels(name, tensor)}
        if not params:
            raise ConfigError(f"the network {type(net).__name__} has no parameters to train.")
        for name, tensor in params.items():
            if tensor.dtype != torch.float32:
                raise ConfigError(f"parameter {name} of the network is {tensor.dtype}; weights are float32.")
        self.param_shapes = {name: tensor.shape for name, tensor in params.items()}
        self.buffer_shapes = {name: tensor.shape for name, tensor in buffers.items()}
        self.num_params = sum(tensor.numel() for tensor in params.values())
        self.size = self.num_params + sum(tensor.numel() for tensor in buffers.values())

    @property
    def shapes(self) -> dict[str, torch.Size]:
        """Of all parts of the vector, by name."""
        return self.param_shapes | self.buffer_shapes

    def vector(self, net: nn.Module) -> Tensor:
        """A copy of the network's weights."""
        return torch.cat([tensor.detach().float().reshape(-1) for _, _, tensor in self._places(net)])

    def split(self, vector: Tensor) -> tuple[Tensor, Tensor]:
        """Its parameters and its buffers."""
        return vector[: self.num_params], vector[self.num_params :]

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """Name to tensor, over the vector's memory."""
        params, buffers = self.split(vector)
        return self.param_views(params) | self.buffer_views(buffers)

    def param_views(self, params: Tensor) -> dict[str, Tensor]:
        return views_of(params, self.param_shapes)

    def buffer_views(self, buffers: Tensor) -> dict[str, Tensor]:
        return views_of(buffers, self.buffer_shapes)

    def bind(self, net: nn.Module, vector: Tensor) -> nn.Module:
        """Makes the network's own tensors views of the vector: a write to the vector changes the network."""
        views = self.views(vector)
        for name, owner, tensor in list(self._places(net)):
            # .data has its own version counter: BatchNorm's statistics change between forward and backward.
            view = views[name].data
            if isinstance(tensor, nn.Parameter):
                tensor.data = view
            else:
                setattr(owner, name.rpartition(".")[2], view)
        return net

    def _places(self, net: nn.Module) -> Iterator[tuple[str, nn.Module, Tensor]]:
        tensors = dict(net.named_parameters()) | dict(net.named_buffers())
        for name in self.shapes:
            yield name, net.get_submodule(name.rpartition(".")[0]), tensors[name]


def _travels(name: str, tensor: Tensor) -> bool:
    # BatchNorm counts its batches in an integer, in place; as a float in the vector it is exact to 2**24.
    if name.endswith("num_batches_tracked"):
        return True
    # Infinities are those of a constant, such as a mask of attention: no number moves towards them.
    return tensor.is_floating_point() and (tensor.is_meta or bool(tensor.isfinite().all()))


def views_of(vector: Tensor, shapes: dict[str, torch.Size]) -> dict[str, Tensor]:
    """Consecutive parts of a vector by name, over its memory."""
    if not shapes:
        return {}
    parts = torch.split(vector, [math.prod(shape) for shape in shapes.values()])
    return {name: part.view(shape) for part, (name, shape) in zip(parts, shapes.items(), strict=True)}
