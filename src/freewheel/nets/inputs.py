"""Raw observations as float tensors: the first step of every built-in network. Has no parameters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from freewheel.errors import ConfigError
from freewheel.nets import pixels
from freewheel.spec import Space, any_value, choices, leaves

Obs = Tensor | dict[str, Tensor]


def takes_vector(given: object, space: Space) -> bool:
    """Whether net.body asks for an MLP; auto does, unless the observation is an image."""
    return isinstance(given, str) and (given == "mlp" or (given == "auto" and not is_image(space)))


def vector_input(space: Space, stack: int, rescale: bool) -> tuple[nn.Module, int]:
    """A module that turns observations into one vector [B, size], and that size. Plain floats only need to be flattened."""
    if isinstance(space, spaces.Box) and space.dtype == np.float32 and space.shape and not rescale:
        return nn.Flatten(), stack * int(np.prod(space.shape, dtype=np.int64))
    made = Vector(space, stack, rescale)
    return made, made.size


class Vector(nn.Module):
    """Any observation as one vector [B, size]: numbers unchanged or rescaled, uint8 as 0..1, choices as one-hots, parts side by side."""

    def __init__(self, space: Space, stack: int = 1, rescale: bool = False) -> None:
        super().__init__()
        self.names = [name for name, _, _ in leaves(space)]
        parts = [_part(name, part, stack, rescale) for name, _, part in leaves(space)]
        self.size = sum(part.size for part in parts)
        self.parts = nn.ModuleList(parts)

    def forward(self, obs: Obs) -> Tensor:
        if isinstance(obs, Tensor):
            vector: Tensor = self.parts[0](obs)
            return vector
        return torch.cat([part(obs[name]) for name, part in zip(self.names, self.parts, strict=True)], dim=1)


class Numbers(nn.Module):
    """A Box or MultiBinary as floats. `rescale` maps bounded numbers to -1..1 and leaves the others unchanged."""

    def __init__(self, space: Space, stack: int, rescale: bool = False) -> None:
        super().__init__()
        self.size = stack * int(np.prod(space.shape or (), dtype=np.int64))
        # Plain attributes: as buffers they would be published with the weights.
        self.middle: Tensor | None = None
        self.reach: Tensor | None = None
        if rescale:
            self.middle, self.reach = _bounds(space)

    def forward(self, x: Tensor) -> Tensor:
        if self.middle is not None and self.reach is not None:
            x = (x.float() - self.middle.to(x.device)) / self.reach.to(x.device)
        return scaled(x).reshape(x.shape[0], -1)


def _bounds(space: Space) -> tuple[Tensor, Tensor] | tuple[None, None]:
    if not isinstance(space, spaces.Box) or space.dtype == np.uint8:
        return None, None
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    # Bounds near the largest float mean unbounded.
    is_bounded = (np.abs(low) < 1e6) & (np.abs(high) < 1e6) & (high > low)
    low, high = np.where(is_bounded, low, -1), np.where(is_bounded, high, 1)
    middle, reach = (low + high) / 2, (high - low) / 2
    return torch.from_numpy(middle.astype(np.float32)), torch.from_numpy(reach.astype(np.float32))


class Choices(nn.Module):
    """A Discrete or MultiDiscrete as one-hots, side by side."""

    def __init__(self, counts: Sequence[int], starts: Sequence[int], stack: int) -> None:
        super().__init__()
        self.stack = stack
        self.ranges = [(start, start + count) for count, start in zip(counts, starts, strict=True)]
        self.are_alike = len(set(self.ranges)) == 1
        self.size = stack * sum(counts)

    def forward(self, x: Tensor) -> Tensor:
        # The values are made here: as buffers they would be published with the weights.
        x = x.reshape(x.shape[0], self.stack, len(self.ranges), 1)
        if self.are_alike:
            ones = x == torch.arange(*self.ranges[0], device=x.device)
        else:
            ones = torch.cat(
                [x[:, :, i] == torch.arange(*span, device=x.device) for i, span in enumerate(self.ranges)], dim=2
            )
        return ones.float().flatten(1)


class Image(nn.Module):
    """A Box of two or three dimensions as [B, channels, height, width]; the frames of a stack become channels."""

    def __init__(self, space: Space, stack: int = 1) -> None:
        super().__init__()
        if not isinstance(space, spaces.Box) or len(space.shape) not in (2, 3):
            raise ConfigError(
                f"net.body=cnn needs an image, a Box of 2 or 3 dimensions; the observation space is {space}. "
                "Use net.body=mlp, or a network of your own."
            )
        shape = tuple(int(n) for n in space.shape)
        # There are fewer colours than pixels: the shorter end is the channels.
        self.is_channels_last = len(shape) == 3 and shape[2] < shape[0]
        if len(shape) == 2:
            shape = (1, *shape)
        elif self.is_channels_last:
            shape = (shape[2], shape[0], shape[1])
        self.channels, self.height, self.width = stack * shape[0], shape[1], shape[2]
        # The memory format of its output; the convolutions keep it.
        self.memory_format = torch.contiguous_format

    def forward(self, x: Tensor) -> Tensor:
        if self.is_channels_last:
            x = x.movedim(-1, -3)
        x = x.reshape(x.shape[0], self.channels, self.height, self.width)
        if self.memory_format is torch.channels_last and (made := pixels.channels_last(x)) is not None:
            return made
        # Bytes are moved before they become floats: a quarter of the memory.
        return scaled(x.contiguous(memory_format=self.memory_format))


FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


def set_memory_format(net: nn.Module, name: str) -> None:
    """The memory format of the network's images from its next pass on. Only built-in networks have such images."""
    for module in net.modules():
        if isinstance(module, Image):
            module.memory_format = FORMATS[name]


def has_images(net: nn.Module) -> bool:
    """Whether it is a built-in network for images."""
    return any(isinstance(module, Image) for module in net.modules())


def is_image(space: Space) -> bool:
    """Whether net.body=auto treats an observation as an image: bytes in two or three dimensions."""
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) in (2, 3)


def scaled(x: Tensor) -> Tensor:
    """As float32; bytes as 0..1."""
    return x.float() / 255 if x.dtype == torch.uint8 else x.float()


def example(space: Space, stack: int = 1, batch: int = 2) -> Obs:
    """A batch as the replay gives it, of values that the space allows; nothing in it is random."""
    made = {name: _example(part, stack, batch) for name, _, part in leaves(space)}
    return made.get("", made)


def any_observations(space: Space, stack: int, batch: int) -> dict[str, Tensor]:
    """Fields of rows that differ from each other: random bytes and floats, choices as in `example`; the same at every call."""
    generator = torch.Generator().manual_seed(0)
    fields = {}
    for name, _, part in leaves(space):
        tensor = _example(part, stack, batch)
        if isinstance(part, spaces.Box) and tensor.dtype == torch.uint8:
            tensor = torch.randint(0, 256, tensor.shape, dtype=torch.uint8, generator=generator)
        elif isinstance(part, spaces.Box) and tensor.is_floating_point():
            tensor = torch.randn(tensor.shape, generator=generator).to(tensor.dtype)
        fields[f"obs.{name}" if name else "obs"] = tensor
    return fields


def _example(space: Space, stack: int, batch: int) -> Tensor:
    shape = (batch, stack) if stack > 1 else (batch,)
    return torch.from_numpy(np.broadcast_to(any_value(space), (*shape, *(space.shape or ()))).copy())


def _part(name: str, space: Space, stack: int, rescale: bool) -> Numbers | Choices:
    if isinstance(space, (spaces.Box, spaces.MultiBinary)):
        return Numbers(space, stack, rescale)
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        return Choices(*choices(space), stack)
    where = f"part {name!r} of the observation space" if name else "the observation space"
    raise ConfigError(
        f"{where} is {type(space).__name__}; networks read Box, Discrete, MultiDiscrete and MultiBinary, "
        "and Dict and Tuple of those. Wrap the env so that it gives one of them."
    )
