"""Batches on their way to a CUDA device: the next one is copied, by a stream of its own, while the one before it is trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from freewheel.memory.nested import Nested, leaves, moved


@dataclass(slots=True)
class Moving:
    """What was copied, or is being copied; `done` is the event behind it."""

    groups: list[dict[str, Any]]
    done: Any


class Transfer:
    """From pinned memory, which may be used again once `finish` has returned."""

    def __init__(self, device: torch.device, cuda: Any = torch.cuda) -> None:
        self.device, self._cuda = device, cuda
        self._stream = cuda.Stream(device)

    def start(self, groups: Sequence[Nested]) -> Moving:
        """Does not wait: neither for the copy nor for what the device is computing."""
        with self._cuda.stream(self._stream):
            copies = [moved(group, self.device) for group in groups]
            done = self._cuda.Event()
            done.record(self._stream)
        return Moving(copies, done)

    def finish(self, moving: Moving) -> list[dict[str, Any]]:
        """Waits for the copy, which began a batch ago; what is computed from it is the computing stream's from then on."""
        moving.done.synchronize()
        computing = self._cuda.current_stream(self.device)
        for group in moving.groups:
            for tensor in leaves(group):
                tensor.record_stream(computing)  # its memory is not given away while that stream reads it
        return moving.groups
