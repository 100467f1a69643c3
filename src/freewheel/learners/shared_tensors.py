"""Tensors in memory that several processes share, placed one after the other."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from freewheel.memory.segment import Segment


@dataclass(frozen=True)
class Place:
    """One tensor of the shared memory."""

    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype


class Places:
    """Counts the bytes while places are taken."""

    def __init__(self) -> None:
        self.num_bytes = 0

    def take(self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Place:
        place = Place(self.num_bytes, tuple(shape), dtype)
        size = torch.empty(0, dtype=dtype).element_size() * int(np.prod(shape, dtype=np.int64))
        self.num_bytes += (max(size, 1) + 63) // 64 * 64  # cache lines of their own: no process slows another down
        return place

    def like(self, tensor: Tensor) -> Place:
        return self.take(tensor.shape, tensor.dtype)


def opened(segment: Segment) -> Callable[[Any], Tensor]:
    """The tensor at a place; the memory stays mapped as long as one of them lives."""
    memory = mmap.mmap(segment.core.fd, segment.num_bytes)

    def at(place: Any) -> Tensor:
        made = torch.frombuffer(memory, dtype=place.dtype, count=int(np.prod(place.shape)), offset=place.offset)
        return made.view(place.shape)

    return at
