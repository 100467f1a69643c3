"""A deeper body for images: sections of a convolution, a pool that halves the image, and two residual blocks."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from freewheel.errors import ConfigError
from freewheel.nets.inputs import Image
from freewheel.nets.layers import activation, begin, norm
from freewheel.nets.mlp import dense
from freewheel.spec import Space

BLOCKS = 2


class Residual(nn.Module):
    """x plus what two convolutions make of it."""

    def __init__(self, channels: int, act: str, norm_name: str, conv_bias: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential()
        for i in range(2):
            # The first activation reads what the sum needs too; the second has its input for itself.
            self.layers.add_module(f"activation{i}", activation(act, in_place=i > 0))
            self.layers.add_module(f"conv{i}", nn.Conv2d(channels, channels, 3, padding=1, bias=conv_bias))
            if (normed := norm(norm_name, channels, is_image=True)) is not None:
                self.layers.add_module(f"norm{i}", normed)

    def forward(self, x: Tensor) -> Tensor:
        changed: Tensor = self.layers(x)
        return x + changed


class ImpalaBody(nn.Module):
    """Images [B, ...] to [B, num_features]; one section for each number of channels."""

    def __init__(
        self,
        space: Space,
        channels: Sequence[int],
        hidden: Sequence[int],
        act: str,
        norm_name: str,
        init: str,
        conv_bias: bool = True,
        stack: int = 1,
    ) -> None:
        super().__init__()
        if not channels:
            raise ConfigError(
                "net.channels is empty; net.body=impala has a section for each number. Give at least one."
            )
        self.image = Image(space, stack)
        self.sections = nn.Sequential()
        num_channels, size = self.image.channels, (self.image.height, self.image.width)
        for i, out in enumerate(channels):
            self.sections.add_module(f"conv{i}", nn.Conv2d(num_channels, out, 3, padding=1, bias=conv_bias))
            self.sections.add_module(f"pool{i}", nn.MaxPool2d(3, 2, padding=1))
            for block in range(BLOCKS):
                self.sections.add_module(f"block{i}{block}", Residual(out, act, norm_name, conv_bias))
            num_channels, size = out, ((size[0] + 1) // 2, (size[1] + 1) // 2)
        self.sections.add_module("activation", activation(act, in_place=True))
        num_pixels = num_channels * size[0] * size[1]
        self.layers = dense(num_pixels, hidden, act, norm_name)
        self.num_features = hidden[-1] if hidden else num_pixels
        begin(self, init, act)

    def forward(self, obs: Tensor) -> Tensor:
        features: Tensor = self.layers(self.sections(self.image(obs)).flatten(1))
        return features
