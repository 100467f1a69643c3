"""Bodies other than an MLP: convolutions for images, or the user's own network."""

from __future__ import annotations

from torch import Tensor, nn

from freewheel.config import NetConfig
from freewheel.errors import ConfigError
from freewheel.nets.custom import Body, make_body, output_of
from freewheel.nets.inputs import Image
from freewheel.nets.layers import activation, dense, initialize, norm
from freewheel.spec import Space

BLOCKS = 2


class CnnBody(nn.Module):
    """Images [B, ...] to [B, num_features]: convolutions, then hidden layers."""

    def __init__(self, space: Space, net: NetConfig, stack: int) -> None:
        super().__init__()
        if not len(net.channels) == len(net.kernels) == len(net.strides) or not net.channels:
            raise ConfigError(
                f"net.channels={tuple(net.channels)}, net.kernels={tuple(net.kernels)} and "
                f"net.strides={tuple(net.strides)} differ in length or are empty. Give each convolution one of each."
            )
        self.image = Image(space, stack)
        self.convs = nn.Sequential()
        num_channels, size = self.image.channels, (self.image.height, self.image.width)
        for i, (out, kernel, stride) in enumerate(zip(net.channels, net.kernels, net.strides, strict=True)):
            if min(size) < kernel:
                raise ConfigError(
                    f"convolution {i} has net.kernels={kernel}, but images of {self.image.height} x {self.image.width} "
                    f"are {size[0]} x {size[1]} when they reach it. Set fewer or smaller net.kernels and net.strides "
                    "(and as many net.channels), or net.body=mlp."
                )
            self.convs.add_module(f"conv{i}", nn.Conv2d(num_channels, out, kernel, stride, bias=net.conv_bias))
            if (normed := norm(net.norm, out, is_image=True)) is not None:
                self.convs.add_module(f"norm{i}", normed)
            self.convs.add_module(f"activation{i}", activation(net.activation, in_place=True))
            num_channels, size = out, ((size[0] - kernel) // stride + 1, (size[1] - kernel) // stride + 1)
        num_pixels = num_channels * size[0] * size[1]
        self.layers = dense(num_pixels, net.hidden, net.activation, net.norm)
        self.num_features = net.hidden[-1] if net.hidden else num_pixels

    def forward(self, obs: Tensor) -> Tensor:
        features: Tensor = self.layers(self.convs(self.image(obs)).flatten(1))
        return features


class ImpalaBody(nn.Module):
    """Images [B, ...] to [B, num_features]: per number of channels a convolution, a pool that halves the image, two residual blocks."""

    def __init__(self, space: Space, net: NetConfig, stack: int) -> None:
        super().__init__()
        if not net.channels:
            raise ConfigError(
                "net.channels is empty; net.body=impala has a section for each number. Give at least one."
            )
        self.image = Image(space, stack)
        self.sections = nn.Sequential()
        num_channels, size = self.image.channels, (self.image.height, self.image.width)
        for i, out in enumerate(net.channels):
            self.sections.add_module(f"conv{i}", nn.Conv2d(num_channels, out, 3, padding=1, bias=net.conv_bias))
            self.sections.add_module(f"pool{i}", nn.MaxPool2d(3, 2, padding=1))
            for block in range(BLOCKS):
                self.sections.add_module(f"block{i}{block}", Residual(out, net))
            num_channels, size = out, ((size[0] + 1) // 2, (size[1] + 1) // 2)
        self.sections.add_module("activation", activation(net.activation, in_place=True))
        num_pixels = num_channels * size[0] * size[1]
        self.layers = dense(num_pixels, net.hidden, net.activation, net.norm)
        self.num_features = net.hidden[-1] if net.hidden else num_pixels

    def forward(self, obs: Tensor) -> Tensor:
        features: Tensor = self.layers(self.sections(self.image(obs)).flatten(1))
        return features


class Residual(nn.Module):
    """x plus two convolutions of it."""

    def __init__(self, channels: int, net: NetConfig) -> None:
        super().__init__()
        self.layers = nn.Sequential()
        for i in range(2):
            # The sum needs the input of the first activation too; nothing else reads the input of the second.
            self.layers.add_module(f"activation{i}", activation(net.activation, in_place=i > 0))
            self.layers.add_module(f"conv{i}", nn.Conv2d(channels, channels, 3, padding=1, bias=net.conv_bias))
            if (normed := norm(net.norm, channels, is_image=True)) is not None:
                self.layers.add_module(f"norm{i}", normed)

    def forward(self, x: Tensor) -> Tensor:
        changed: Tensor = self.layers(x)
        return x + changed


def build_body(
    given: Body, space: Space, net: NetConfig, stack: int, *, orthogonal_gain: float | None = None, hint: str = ""
) -> tuple[nn.Module, int]:
    """The body that `given` names or is, and how many features it gives. `hint` ends the error of a wrong shape."""
    if isinstance(given, str) and given in ("auto", "cnn", "impala"):
        own = ImpalaBody(space, net, stack) if given == "impala" else CnnBody(space, net, stack)
        initialize(own, net.init, net.activation, orthogonal_gain)
        return own, own.num_features
    made = make_body(given, space, stack)
    shape = output_of(made, space, stack)
    if len(shape) != 1:
        raise ConfigError(
            f"the network {type(made).__name__} gives {shape} for one observation; a body gives a vector of features. "
            f"End it with .flatten(1){hint}."
        )
    return made, shape[0]
