"""A body for images: convolutions, then hidden layers."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from freewheel.errors import ConfigError
from freewheel.nets.inputs import Image
from freewheel.nets.layers import activation, begin, norm
from freewheel.nets.mlp import dense
from freewheel.spec import Space


class CnnBody(nn.Module):
    """Images [B, ...] to [B, num_features]."""

    def __init__(
        self,
        space: Space,
        channels: Sequence[int],
        kernels: Sequence[int],
        strides: Sequence[int],
        hidden: Sequence[int],
        act: str,
        norm_name: str,
        init: str,
        conv_bias: bool = True,
        stack: int = 1,
    ) -> None:
        super().__init__()
        if not len(channels) == len(kernels) == len(strides) or not channels:
            raise ConfigError(
                f"net.channels={tuple(channels)}, net.kernels={tuple(kernels)} and net.strides={tuple(strides)} differ "
                "in length or are empty. Give each convolution one of each."
            )
        self.image = Image(space, stack)
        self.convs = nn.Sequential()
        num_channels, size = self.image.channels, (self.image.height, self.image.width)
        for i, (out, kernel, stride) in enumerate(zip(channels, kernels, strides, strict=True)):
            if min(size) < kernel:
                raise ConfigError(
                    f"convolution {i} has net.kernels={kernel}, but images of {self.image.height} x {self.image.width} "
                    f"are {size[0]} x {size[1]} when they reach it. Set fewer or smaller net.kernels and net.strides "
                    "(and as many net.channels), or net.body=mlp."
                )
            self.convs.add_module(f"conv{i}", nn.Conv2d(num_channels, out, kernel, stride, bias=conv_bias))
            if (normed := norm(norm_name, out, is_image=True)) is not None:
                self.convs.add_module(f"norm{i}", normed)
            self.convs.add_module(f"activation{i}", activation(act, in_place=True))
            num_channels, size = out, ((size[0] - kernel) // stride + 1, (size[1] - kernel) // stride + 1)
        num_pixels = num_channels * size[0] * size[1]
        self.layers = dense(num_pixels, hidden, act, norm_name)
        self.num_features = hidden[-1] if hidden else num_pixels
        begin(self, init, act)

    def forward(self, obs: Tensor) -> Tensor:
        features: Tensor = self.layers(self.convs(self.image(obs)).flatten(1))
        return features
