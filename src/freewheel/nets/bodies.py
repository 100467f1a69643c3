"""Bodies: from observations to [B, num_features], by an MLP, convolutions for images, or the user's own network."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from freewheel.config import NetConfig
from freewheel.errors import ConfigError
from freewheel.nets.custom import Body, make_body, output_of
from freewheel.nets.inputs import Image, takes_vector, vector_input
from freewheel.nets.layers import activation, dense, initialize, norm
from freewheel.spec import Space

BLOCKS = 2


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


def mlp_body(space: Space, net: NetConfig, stack: int) -> tuple[nn.Module, int]:
    """Observations of any space: hidden layers."""
    inputs, size = vector_input(space, stack, net.rescale)
    layers, num_features = dense(size, net.hidden, net.activation, net.norm)
    return nn.Sequential(OrderedDict(inputs=inputs, layers=layers)), num_features


def cnn_body(space: Space, net: NetConfig, stack: int) -> tuple[nn.Module, int]:
    """Images: convolutions, then hidden layers."""
    image, convs = Image(space, stack), nn.Sequential()
    num_channels, size = image.channels, (image.height, image.width)
    for i, (out, kernel, stride) in enumerate(zip(net.channels, net.kernels, net.strides, strict=True)):
        if min(size) < kernel:
            raise ConfigError(
                f"convolution {i} has net.kernels={kernel}, but images of {image.height} x {image.width} "
                f"are {size[0]} x {size[1]} when they reach it. Set fewer or smaller net.kernels and net.strides "
                "(and as many net.channels), or net.body=mlp."
            )
        convs.add_module(f"conv{i}", nn.Conv2d(num_channels, out, kernel, stride, bias=net.conv_bias))
        if (normed := norm(net.norm, out, is_image=True)) is not None:
            convs.add_module(f"norm{i}", normed)
        convs.add_module(f"activation{i}", activation(net.activation, in_place=True))
        num_channels, size = out, ((size[0] - kernel) // stride + 1, (size[1] - kernel) // stride + 1)
    layers, num_features = dense(num_channels * size[0] * size[1], net.hidden, net.activation, net.norm)
    return nn.Sequential(OrderedDict(image=image, convs=convs, flat=nn.Flatten(), layers=layers)), num_features


def impala_body(space: Space, net: NetConfig, stack: int) -> tuple[nn.Module, int]:
    """Images: per number of channels a convolution, a pool that halves the image and two residual blocks; then hidden layers."""
    image, sections = Image(space, stack), nn.Sequential()
    num_channels, size = image.channels, (image.height, image.width)
    for i, out in enumerate(net.channels):
        sections.add_module(f"conv{i}", nn.Conv2d(num_channels, out, 3, padding=1, bias=net.conv_bias))
        sections.add_module(f"pool{i}", nn.MaxPool2d(3, 2, padding=1))
        for block in range(BLOCKS):
            sections.add_module(f"block{i}{block}", Residual(out, net))
        num_channels, size = out, ((size[0] + 1) // 2, (size[1] + 1) // 2)
    sections.add_module("activation", activation(net.activation, in_place=True))
    layers, num_features = dense(num_channels * size[0] * size[1], net.hidden, net.activation, net.norm)
    return nn.Sequential(OrderedDict(image=image, sections=sections, flat=nn.Flatten(), layers=layers)), num_features


def _auto_body(space: Space, net: NetConfig, stack: int) -> tuple[nn.Module, int]:
    return mlp_body(space, net, stack) if takes_vector("auto", space) else cnn_body(space, net, stack)


BUILT_IN = {"auto": _auto_body, "mlp": mlp_body, "cnn": cnn_body, "impala": impala_body}


def build_body(
    given: Body, space: Space, net: NetConfig, stack: int, *, orthogonal_gain: float | None = None, hint: str = ""
) -> tuple[nn.Module, int]:
    """The body that `given` names or is, and how many features it gives. `hint` ends the error of a wrong shape."""
    if isinstance(given, str) and given in BUILT_IN:
        own, num_features = BUILT_IN[given](space, net, stack)
        initialize(own, net.init, net.activation, orthogonal_gain)
        return own, num_features
    made = make_body(given, space, stack)
    shape = output_of(made, space, stack)
    if len(shape) != 1:
        raise ConfigError(
            f"the network {type(made).__name__} gives {shape} for one observation; a body gives a vector of features. "
            f"End it with .flatten(1){hint}."
        )
    return made, shape[0]
