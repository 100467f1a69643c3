"""Batches and draws: tensors by name, some of them one level deeper. Taken apart by rows, by updates and into a flat list."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from freewheel.contracts import Batch, Draws

Nested = Mapping[str, Any]


def mapped(tensors: Nested, change: Callable[[Any], Any]) -> dict[str, Any]:
    return {
        name: mapped(value, change) if isinstance(value, Mapping) else change(value) for name, value in tensors.items()
    }


def leaves(tensors: Nested) -> Iterator[Tensor]:
    for value in tensors.values():
        if isinstance(value, Mapping):
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


def moved(tensors: Nested, device: torch.device) -> dict[str, Any]:
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


def as_tensors(fields: Mapping[str, Any]) -> Any:
    """Fields of the row spec as a network takes them: one tensor, or a dict of the parts of a nested space."""
    if "obs" in fields:
        return torch.from_numpy(fields["obs"])
    return {name.removeprefix("obs."): torch.from_numpy(rows) for name, rows in fields.items()}
