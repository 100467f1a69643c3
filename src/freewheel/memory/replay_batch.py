"""Batches of a replay: where their arrays lie in a buffer, and the tensors over it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from freewheel import _core
from freewheel.memory.nested import moved
from freewheel.spec import Field

COLUMNS = (
    ("reward", "float32"),
    ("discount", "float32"),
    ("weight", "float32"),
    ("chance", "float32"),
    ("steps", "int64"),
    ("lane", "int64"),
    ("row", "int64"),
    ("version", "int64"),
    ("age", "int64"),
)
Tensors = torch.Tensor | dict[str, torch.Tensor]


@dataclass(frozen=True)
class Placed:
    """One array within a batch's buffer; strides in bytes."""

    number: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]


class BatchLayout:
    """Where everything lies in a batch's buffer: the arrays by name, in the order the core expects them.

    `groups` collects the fields of nested spaces under their first name: obs.pos and obs.bag.0 under obs. With one step and a
    stack, obs and next_obs are two views of the same stack + 1 frames.
    """

    def __init__(self, fields: tuple[Field, ...], batch_size: int, stack: int, n_step: int) -> None:
        self.arrays: dict[str, Placed] = {}
        self.groups: dict[str, list[str]] = {}
        self.num_bytes = 0
        seen = (stack,) if stack > 1 else ()
        self.shares_frames = stack > 1 and n_step == 1
        for field in fields:
            if field.is_observation:
                kept = (stack + 1,) if self.shares_frames else seen
                self._place(field.name, (batch_size, *seen, *field.shape), field.dtype, kept + field.shape)
            else:
                self._place(field.name, (batch_size, *field.shape), field.dtype)
        for field in fields:
            name = f"next_{field.name}"
            if field.is_observation and self.shares_frames:
                now = self.arrays[field.name]
                self._add(name, now.offset + field.num_bytes, now.shape, now.strides, now.dtype)
            elif field.is_observation:
                self._place(name, (batch_size, *seen, *field.shape), field.dtype)
        for name, dtype in COLUMNS:
            self._place(name, (batch_size,), dtype)

    @property
    def offsets(self) -> list[int]:
        return [array.offset for array in self.arrays.values()]

    def described(self) -> list[tuple[int, str, int, list[int], list[int]]]:
        return [
            (a.offset, a.dtype.kind, a.dtype.itemsize, list(a.shape), [n // a.dtype.itemsize for n in a.strides])
            for a in self.arrays.values()
        ]

    def tensors(self, buffer: np.ndarray[Any, Any]) -> dict[str, Any]:
        """Every group's tensor, or dict of tensors, over a buffer's bytes."""
        made = {
            name: torch.from_numpy(np.ndarray(a.shape, a.dtype, buffer, a.offset, a.strides))
            for name, a in self.arrays.items()
        }
        return {
            group: made[group] if group in made else {name.split(".", 1)[1]: made[name] for name in names}
            for group, names in self.groups.items()
        }

    def _place(self, name: str, shape: tuple[int, ...], dtype: str, kept: tuple[int, ...] | None = None) -> None:
        """Memory for an array; `kept`, the shape of a row in it, may be larger than what the array shows."""
        item = np.dtype(dtype)
        strides = [item.itemsize]
        for size in reversed(shape[1:] if kept is None else kept):
            strides.append(strides[-1] * size)
        self._add(name, self.num_bytes, shape, tuple(reversed(strides)), item)
        self.num_bytes += (strides[-1] * shape[0] + 63) // 64 * 64

    def _add(
        self, name: str, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any]
    ) -> None:
        self.arrays[name] = Placed(len(self.arrays), offset, shape, strides, dtype)
        self.groups.setdefault(name.split(".")[0], []).append(name)


class _Made:
    """An attribute of a batch that is made when it is first asked for and is a plain attribute from then on."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, batch: ReplayBatch, owner: type) -> Any:
        made = batch.__dict__[self.name] = batch._make(self.name)
        return made


class ReplayBatch:
    """What a learner trains on. Every name of the rows, and what was put together from them:

    `obs`, `action`, `next_obs` (a tensor, or a dict of tensors for nested spaces) and the extra columns by name;
    `reward` the n-step return, `discount` its gamma^m or 0 at termination, `steps` the m; `weight` the importance weights;
    `lane`, `row` which row it is; `version` the policy that acted; `age` in rows of its lane.

    Tensors are made when first asked for and share the buffer's memory; it is not used again while one of them lives.
    """

    def __init__(self, lease: _core.Lease, layout: BatchLayout) -> None:
        self._lease = lease
        self._layout = layout

    # Found at once; other names only by __getattr__, after a search that fails.
    obs, action, next_obs = _Made("obs"), _Made("action"), _Made("next_obs")
    reward, discount, weight = _Made("reward"), _Made("discount"), _Made("weight")

    @property
    def posts_since(self) -> int:
        """New priorities, counted by calls, that came too late for the draw of this batch."""
        return self._lease.posts_since()

    def array(self, name: str) -> np.ndarray[Any, Any]:
        """The array of one field or column, over the buffer's memory."""
        a = self._layout.arrays[name]
        made: np.ndarray[Any, Any] = np.ndarray(a.shape, a.dtype, self._lease, a.offset, a.strides)  # type: ignore[arg-type]
        return made

    def __getattr__(self, name: str) -> Any:
        made = self.__dict__[name] = self._make(name)
        return made

    def __getitem__(self, name: str) -> Tensors:
        found: Tensors = getattr(self, name)
        return found

    def to(self, device: torch.device | str) -> dict[str, Tensors]:
        """Everything on another device; from pinned memory the copy does not wait."""
        return moved({name: self[name] for name in self._layout.groups}, device)

    def _make(self, name: str) -> Tensors:
        array = self._layout.arrays.get(name)
        if array is not None:
            return from_dlpack(self._lease.tensor(array.number))
        names = self._layout.groups.get(name)
        if names is None:
            raise AttributeError(f"a batch has {', '.join(self._layout.groups)}; not {name!r}.")
        return {
            full.split(".", 1)[1]: from_dlpack(self._lease.tensor(self._layout.arrays[full].number)) for full in names
        }
