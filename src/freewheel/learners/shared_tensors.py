"""Tensors in memory that several processes share, placed one after the other."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from freewheel.memory.segment import Segment, Shared


@dataclass(frozen=True)
class Place:
    """One tensor of the shared memory."""

    offset: int
    shape: torch.Size
    dtype: torch.dtype


class SharedTensors(Shared):
    """Attributes that are shared tensors, or dicts and lists of them."""

    handed: ClassVar[tuple[str, ...]] = ("segment", "_places")
    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...  # the attributes that `_make` was given

    def _make(self, examples: Mapping[str, Any], name: str, cure: str) -> None:
        """Memory for tensors like these, in their order."""
        num_bytes = 0

        def place(like: Tensor) -> Place:
            nonlocal num_bytes
            at = num_bytes
            # Cache lines of their own: no process slows another down.
            num_bytes += (max(like.nbytes, 1) + 63) // 64 * 64
            return Place(at, like.shape, like.dtype)

        self._places = tree_map(place, examples)
        self.segment = Segment.create(num_bytes, name, cure)
        self._open()

    def _open(self, format_at: int | None = None) -> None:
        # It stays mapped as long as one of the tensors lives.
        memory = mmap.mmap(self.segment.core.fd, self.segment.num_bytes)

        def at(place: Place) -> Tensor:
            made = torch.frombuffer(memory, dtype=place.dtype, count=place.shape.numel(), offset=place.offset)
            return made.view(place.shape)

        vars(self).update(tree_map(at, self._places))
