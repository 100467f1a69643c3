"""What stands between the linear maps: activations, norms and how weights begin."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from freewheel.errors import ConfigError

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
}
NORMS = ("none", "layer", "batch", "batch_conv")
INITS = ("default", "he", "xavier", "orthogonal")


def activation(name: str, in_place: bool = False) -> nn.Module:
    """In place is for what nobody else reads: backward needs neither a convolution's nor a norm's output."""
    if name not in ACTIVATIONS:
        raise ConfigError(f"net.activation={name!r} is not known; choose one of {', '.join(ACTIVATIONS)}.")
    return nn.ReLU(inplace=True) if in_place and name == "relu" else ACTIVATIONS[name]()


def norm(name: str, num_features: int, is_image: bool = False) -> nn.Module | None:
    """The norm of a layer's output; on images, per channel (batch) or over the whole image (layer)."""
    if name not in NORMS:
        raise ConfigError(f"net.norm={name!r} is not known; choose one of {', '.join(NORMS)}.")
    if name == "none" or (name == "batch_conv" and not is_image):
        return None
    if name.startswith("batch"):
        return nn.BatchNorm2d(num_features) if is_image else nn.BatchNorm1d(num_features)
    return nn.GroupNorm(1, num_features) if is_image else nn.LayerNorm(num_features)


def begin(module: nn.Module, init: str, activation: str) -> None:
    """Sets the first weights of every linear map and convolution below `module`. Draws from torch's own generator."""
    if init not in INITS:
        raise ConfigError(f"net.init={init!r} is not known; choose one of {', '.join(INITS)}.")
    if init == "default":
        return
    # The others are near relu in how much of a signal's size they keep.
    gain = nn.init.calculate_gain("tanh" if activation == "tanh" else "relu")
    for layer in module.modules():
        if not isinstance(layer, (nn.Linear, nn.Conv2d)):
            continue
        if init == "he":
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        elif init == "xavier":
            nn.init.xavier_uniform_(layer.weight, gain)
        else:
            nn.init.orthogonal_(layer.weight, gain)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
