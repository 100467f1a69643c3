"""Hidden layers: linear maps with norms and activations, and their initial weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
}


class Output(nn.Linear):
    """The last linear map of a network, which computes it in `float32`. Copies for acting in fewer bits leave it as it is."""


def float32(device: torch.device) -> AbstractContextManager[None]:
    """Within it nothing is computed in fewer bits. bf16 has 8: near 20 it counts in steps of 0.125, near 100 of 0.5, and values tie."""
    if not (torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def dense(num_inputs: int, hidden: Sequence[int], act: str, norm_name: str) -> tuple[nn.Sequential, int]:
    """Hidden layers, and the number of their outputs. Each is named by kind and position, so that adding a norm renames no other layer."""
    layers = nn.Sequential()
    for i, size in enumerate(hidden):
        layers.add_module(f"linear{i}", nn.Linear(num_inputs, size))
        if (normed := norm(norm_name, size)) is not None:
            layers.add_module(f"norm{i}", normed)
        layers.add_module(f"activation{i}", activation(act))
        num_inputs = size
    return layers, num_inputs


def activation(name: str, in_place: bool = False) -> nn.Module:
    """In place is for inputs that nothing else reads: backward needs neither a convolution's nor a norm's output."""
    return nn.ReLU(inplace=True) if in_place and name == "relu" else ACTIVATIONS[name]()


def norm(name: str, num_features: int, is_image: bool = False) -> nn.Module | None:
    """The norm of a layer's output; on images, per channel (batch) or over the whole image (layer)."""
    if name == "none" or (name == "batch_conv" and not is_image):
        return None
    if name.startswith("batch"):
        return nn.BatchNorm2d(num_features) if is_image else nn.BatchNorm1d(num_features)
    return nn.GroupNorm(1, num_features) if is_image else nn.LayerNorm(num_features)


def initialize(module: nn.Module, init: str, activation: str, orthogonal_gain: float | None = None) -> None:
    """Sets the initial weights of every linear map and convolution in `module`. Draws from torch's own generator."""
    if init == "default":
        return
    # The gains of the other activations are close to that of relu.
    gain = nn.init.calculate_gain("tanh" if activation == "tanh" else "relu")
    for layer in module.modules():
        if not isinstance(layer, (nn.Linear, nn.Conv2d)):
            continue
        if init == "he":
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        elif init == "xavier":
            nn.init.xavier_uniform_(layer.weight, gain)
        else:
            nn.init.orthogonal_(layer.weight, orthogonal_gain or gain)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
