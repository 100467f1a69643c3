"""The networks of `benchmarks pixels` as plain modules."""

import torch
from torch import Tensor, nn

from .pixels_settings import (
    ACTIONS,
    CHANNELS,
    HIDDEN,
    KERNELS,
    MARIO_ACTIONS,
    MARIO_SIZE,
    MARIO_STACK,
    SIZE,
    STACK,
    STRIDES,
)


class Scaled(nn.Module):
    """Bytes as 0..1."""

    def forward(self, frames: Tensor) -> Tensor:
        return frames.float() / 255


def nature() -> nn.Sequential:
    return _net(STACK, SIZE, ACTIONS, with_norm=False)


def mario() -> nn.Sequential:
    """BatchNorm in place of biases, and He's first weights."""
    net = _net(MARIO_STACK, MARIO_SIZE, MARIO_ACTIONS, with_norm=True)
    for layer in list(net)[:-1]:
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return net


def _net(channels: int, size: int, actions: int, *, with_norm: bool) -> nn.Sequential:
    layers: list[nn.Module] = [Scaled()]
    for out, kernel, stride in zip(CHANNELS, KERNELS, STRIDES, strict=True):
        layers.append(nn.Conv2d(channels, out, kernel, stride, bias=not with_norm))
        if with_norm:
            layers.append(nn.BatchNorm2d(out))
        layers.append(nn.ReLU(inplace=True))
        channels, size = out, (size - kernel) // stride + 1
    layers += [nn.Flatten(), nn.Linear(channels * size * size, HIDDEN), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.Linear(HIDDEN, actions))


def same_numbers(net: nn.Module, seed: int = 0) -> None:
    """Weights of a network that any other one with as many parameters gets too, in the order of its parameters."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
            elif parameter.ndim > 1:
                bound = (3 / parameter[0].numel()) ** 0.5
                parameter.copy_(torch.empty(parameter.shape).uniform_(-bound, bound, generator=generator))
