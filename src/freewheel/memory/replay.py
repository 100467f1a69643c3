"""Replay: lanes sampled many times, as batches of torch tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from freewheel import _core
from freewheel.errors import ConfigError
from freewheel.memory.lanes import Lanes
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
LEAST_PRIORITY = 1e-6  # a row that was predicted exactly keeps a small chance
Tensors = torch.Tensor | dict[str, torch.Tensor]


class Replay:
    """Draws batches from lanes, uniformly or by priority, with n-step returns and frame stacks put together on the way.

    One learner's view: any number of them may read the same lanes, while any process writes them. Batches lie in
    buffers that are filled again only when a batch and every tensor made from it are gone.

    `prefetch` batches are made ready by a thread of their own; 0 makes each when it is asked for, which is what a
    repeatable run wants. On a CUDA device the buffers are pinned and `batch.to(device)` copies without waiting.
    """

    def __init__(
        self,
        lanes: Lanes,
        batch_size: int,
        *,
        n_step: int = 1,
        gamma: float = 0.99,
        stack: int = 1,
        pad: Literal["first", "zero"] = "first",
        prioritized: bool = False,
        alpha: float = 0.6,
        seed: int = 0,
        prefetch: int = 0,
        timeout_s: float = 60.0,
    ) -> None:
        _check(batch_size, n_step, gamma, stack, pad, alpha, prefetch)
        self.lanes = lanes
        self.batch_size = batch_size
        self.timeout_s = timeout_s
        self._layout = Layout(lanes.spec.fields, batch_size, stack, n_step)
        self._core = _core.Sampler.make(
            lanes.core,
            batch_size,
            n_step,
            gamma,
            stack,
            pad == "zero",
            alpha,
            prioritized,
            seed % 2**64,
            prefetch,
        )
        self._core.describe(self._layout.described())
        self._views: dict[int, dict[str, Any]] = {}
        for _ in range(prefetch + 1):
            self._add_buffer()

    def sample(self, beta: float = 0.4) -> Batch:
        """The next batch. `beta` is the exponent of the importance weights; uniform batches have weight 1."""
        lease = self._core.take(beta, self.timeout_s, self._layout.num_bytes)
        while lease is None:  # every buffer is in somebody's hands
            self._add_buffer()
            lease = self._core.take(beta, self.timeout_s, self._layout.num_bytes)
        return Batch(lease, self._layout)

    def example(self) -> dict[str, Any]:
        """Zeros in the shapes, dtypes and strides of every batch that this replay gives; needs no rows."""
        return self._layout.tensors(np.zeros(self._layout.num_bytes, np.uint8))

    def views(self, batch: Batch) -> dict[str, Any]:
        """All names of a batch as tensors that were made once for its buffer: always the same dict for the same buffer.

        Cheaper than the batch's own, but only good as long as the batch itself is held.
        """
        return self._views[batch._lease.address]

    def update_priorities(self, batch: Batch, priorities: torch.Tensor | np.ndarray[Any, Any]) -> None:
        """New priorities for a batch's rows; those of rows overwritten meanwhile are ignored and counted."""
        if isinstance(priorities, torch.Tensor):
            priorities = priorities.detach().cpu().numpy()
        self._core.update(batch._lease, priorities)

    def update_errors(self, batch: Batch, pieces: Sequence[torch.Tensor]) -> None:
        """Priorities from errors >= 0 in equal pieces, which together are the batch; what is no number counts as 0.

        The same as joining and cleaning them first, which costs more than all the rest.
        """
        held = [piece if _is_plain(piece) else piece.detach().float().cpu().contiguous() for piece in pieces]
        if any(len(piece) * len(held) != self.batch_size for piece in held):
            raise ConfigError(f"errors of {[len(piece) for piece in held]} rows are not a batch of {self.batch_size}.")
        self._core.update_pieces(batch._lease, [piece.data_ptr() for piece in held], LEAST_PRIORITY)

    @property
    def prioritized(self) -> bool:
        """Whether batches are drawn by priority; may be changed at any time."""
        return self._core.prioritized

    @prioritized.setter
    def prioritized(self, on: bool) -> None:
        self._core.prioritized = on

    def stats(self) -> dict[str, int]:
        """Batches made; rows drawn again because a writer overtook the copy; draws that were no start; late priorities."""
        return dict(zip(("batches", "redraws", "rejected", "stale_priorities"), self._core.stats(), strict=True))

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps beside the rows, JSON-able; refused with prefetch, whose thread has drawn ahead."""
        return {"random": self._core.random_state(), "max_priority": self._core.max_priority}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._core.set_random_state(state["random"])
        self._core.max_priority = state["max_priority"]

    def close(self) -> None:
        """Stops the prefetching. Batches already handed out stay good."""
        self._core.stop()

    def _add_buffer(self) -> None:
        # 64 bytes more, to begin on a cache line: torch promises 64 only on some builds.
        block = torch.zeros(self._layout.num_bytes + 64, dtype=torch.uint8, pin_memory=torch.cuda.is_available())
        address = (block.data_ptr() + 63) // 64 * 64
        self._views[address] = self._layout.tensors(block.numpy()[address - block.data_ptr() :])
        self._core.add_buffer(block, address, self._layout.offsets, self._layout.shares_frames)


@dataclass(frozen=True)
class Array:
    """One array within a batch's buffer; strides in bytes."""

    number: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]


class Layout:
    """Where everything lies in a batch's buffer: the arrays by name, in the order the core expects them.

    `groups` collects the fields of nested spaces under their first name: obs.pos and obs.bag.0 under obs. With one step and a
    stack, obs and next_obs are two views of the same stack + 1 frames.
    """

    def __init__(self, fields: tuple[Field, ...], batch_size: int, stack: int, n_step: int) -> None:
        self.arrays: dict[str, Array] = {}
        self.groups: dict[str, list[str]] = {}
        self.num_bytes = 0
        seen = (stack,) if stack > 1 else ()
        self.shares_frames = stack > 1 and n_step == 1
        for field in fields:
            if field.is_observation:
                kept = (stack + 1,) if self.shares_frames else seen
                self._place(
                    field.name, (batch_size, *kept, *field.shape), (batch_size, *seen, *field.shape), field.dtype
                )
            else:
                self._place(field.name, (batch_size, *field.shape), (batch_size, *field.shape), field.dtype)
        for field in fields:
            name = f"next_{field.name}"
            if field.is_observation and self.shares_frames:
                now = self.arrays[field.name]
                self._add(name, now.offset + field.num_bytes, now.shape, now.strides, now.dtype)
            elif field.is_observation:
                self._place(name, (batch_size, *seen, *field.shape), (batch_size, *seen, *field.shape), field.dtype)
        for name, dtype in COLUMNS:
            self._place(name, (batch_size,), (batch_size,), dtype)

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

    def _place(self, name: str, kept: tuple[int, ...], seen: tuple[int, ...], dtype: str) -> None:
        """Room for an array of shape `kept`, of which `seen` is looked at."""
        item = np.dtype(dtype)
        strides = [item.itemsize]
        for size in reversed(kept[1:]):
            strides.append(strides[-1] * size)
        self._add(name, self.num_bytes, seen, tuple(reversed(strides)), item)
        self.num_bytes += (strides[-1] * kept[0] + 63) // 64 * 64

    def _add(
        self, name: str, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any]
    ) -> None:
        self.arrays[name] = Array(len(self.arrays), offset, shape, strides, dtype)
        self.groups.setdefault(name.split(".")[0], []).append(name)


class _Made:
    """An attribute of a batch that is made when it is first asked for and is a plain attribute from then on."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, batch: Batch, owner: type) -> Any:
        made = batch.__dict__[self.name] = batch._make(self.name)
        return made


class Batch:
    """What a learner trains on. Every name of the rows, and what was put together from them:

    `obs`, `action`, `next_obs` (a tensor, or a dict of tensors for nested spaces) and the extra columns by name;
    `reward` the n-step return, `discount` its gamma^m or 0 at termination, `steps` the m; `weight` the importance weights;
    `lane`, `row` which row it is; `version` the policy that acted; `age` in rows of its lane.

    Tensors are made when first asked for and share the buffer's memory; it is not used again while one of them lives.
    """

    def __init__(self, lease: _core.Lease, layout: Layout) -> None:
        self._lease = lease
        self._layout = layout

    # Found at once; other names only by __getattr__, after a search that fails.
    obs, action, next_obs = _Made("obs"), _Made("action"), _Made("next_obs")
    reward, discount, weight = _Made("reward"), _Made("discount"), _Made("weight")

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
        return {name: _moved(self[name], device) for name in self._layout.groups}

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


def _is_plain(piece: torch.Tensor) -> bool:
    """Can be read as it lies in memory."""
    return piece.is_cpu and piece.dtype is torch.float32 and piece.is_contiguous()


def _moved(value: Tensors, device: torch.device | str) -> Tensors:
    if isinstance(value, dict):
        return {key: part.to(device, non_blocking=True) for key, part in value.items()}
    return value.to(device, non_blocking=True)


def _check(batch_size: int, n_step: int, gamma: float, stack: int, pad: str, alpha: float, prefetch: int) -> None:
    for name, value, least in (
        ("batch_size", batch_size, 1),
        ("n_step", n_step, 1),
        ("stack", stack, 1),
        ("prefetch", prefetch, 0),
    ):
        if value < least:
            raise ConfigError(f"{name}={value} must be at least {least}.")
    for name, share in (("gamma", gamma), ("alpha", alpha)):
        if not 0 <= share <= 1:
            raise ConfigError(f"{name}={share} must be between 0 and 1.")
    if pad not in ("first", "zero"):
        raise ConfigError(f"pad={pad!r} must be 'first' or 'zero'.")
