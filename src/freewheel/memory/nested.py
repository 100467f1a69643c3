"""Batches and draws: tensors by name, some of them one level deeper. Taken apart by rows, by updates and into a flat list."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from freewheel.contracts import Batch, Draws

Nested = Mapping[str, Any]


@dataclass(slots=True)
class Drawn:
    """What is trained on next: for each call of the update a batch and its random inputs."""

    given: list[Batch]
    draws: list[Draws]
    source: Any = None  # the replay's batch, whose memory it is
    ahead: Any = None  # what was begun with it before its turn: on its way to a device, or with the target process


# Nested batches are dicts all the way down: asking for a Mapping takes five times as long.
def mapped(tensors: Nested, change: Callable[[Any], Any]) -> dict[str, Any]:
    return {
        name: mapped(value, change) if isinstance(value, dict) else change(value) for name, value in tensors.items()
    }


def leaves(tensors: Nested) -> Iterator[Tensor]:
    for value in tensors.values():
        if isinstance(value, dict):
            yield from leaves(value)
        else:
            yield value


def filled(like: Nested, given: Iterator[Tensor]) -> dict[str, Any]:
    """The reverse of `leaves`."""
    return mapped(like, lambda _: next(given))


def nth(tensors: Nested, i: int) -> dict[str, Any]:
    return mapped(tensors, lambda tensor: tensor[i])


def rows_at(tensors: Nested, first: int, count: int) -> dict[str, Any]:
    return mapped(tensors, lambda tensor: tensor.narrow(0, first, count))


def moved(tensors: Nested, device: torch.device | str) -> dict[str, Any]:
    """From pinned memory the copy does not wait."""
    return mapped(tensors, lambda tensor: tensor.to(device, non_blocking=True))


def num_rows(batch: Batch) -> int:
    return next(leaves(batch)).shape[0]


def parts_of(rows: int, num_parts: int) -> list[tuple[int, int]]:
    """(first, count) of as equal parts as there can be, none of them empty."""
    each, more = divmod(rows, num_parts)
    counts = [each + (i < more) for i in range(num_parts)]
    return [(sum(counts[:i]), count) for i, count in enumerate(counts) if count]


def rows_of(batch: Batch, draws: Draws, first: int, count: int) -> tuple[Batch, Draws]:
    """Some rows. Draws of one dimension serve every row, the others have one line per row."""
    if first == 0 and count == num_rows(batch):
        return batch, draws
    lines = {name: draw if draw.ndim <= 1 else draw.narrow(0, first, count) for name, draw in draws.items()}
    return rows_at(batch, first, count), lines
