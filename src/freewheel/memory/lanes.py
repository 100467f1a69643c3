"""Lanes: rings of rows in shared memory, one writer each; and the outcomes of their newest actions, which are in no row yet."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch

from freewheel import _core
from freewheel.contracts import Array
from freewheel.errors import CheckpointError, ConfigError, ReplayError
from freewheel.memory.segment import Segment, Shared, format_bytes
from freewheel.spec import RowSpec, as_observation

# A piece of a saved replay: large enough for the disk, small beside the replay.
COPY_BYTES = 16 << 20
# Words before a row's fields: {reward, flags}, step, version, priority.
META_WORDS = 4
# The column of the states' values, which a policy of rollouts adds to every row.
VALUE = "value"
NO_OUTCOME = -1
BOOTSTRAP_BYTES = 16  # of a lane


class Lanes(Shared):
    """`num_lanes` rings that keep the newest `lane_rows` rows each.

    A row is an observation, the reward and end flags that *arrived* with it, and the action chosen from it. The reward
    of an action therefore stands in the row after it, each observation is stored once, and an episode's final
    observation is a row with `terminated` or `truncated` set, whose action is not stored.

    `first_row` sets where row numbers begin.
    """

    handed = ("spec", "num_lanes", "lane_rows", "segment")

    def __init__(self, spec: RowSpec, num_lanes: int, lane_rows: int, *, first_row: int = 0) -> None:
        if num_lanes < 1 or lane_rows < 2:
            raise ConfigError(f"num_lanes={num_lanes} must be at least 1 and lane_rows={lane_rows} at least 2.")
        self.spec = spec
        self.num_lanes = num_lanes
        self.lane_rows = lane_rows
        needed = forecast_bytes(spec, num_lanes, lane_rows)
        fewer = max(lane_rows // 2, 2)
        cure = f"Try lane_rows={fewer:_} ({format_bytes(forecast_bytes(spec, num_lanes, fewer))}) or fewer lanes."
        self.segment = Segment.create(needed, f"replay of {num_lanes * lane_rows:,} rows", cure)
        self._open(first_row)

    def _open(self, format_at: int | None = None) -> None:
        fields = [
            (f.name, np.dtype(f.dtype).kind, np.dtype(f.dtype).itemsize, list(f.shape), f.is_observation)
            for f in self.spec.fields
        ]
        self.core = _core.Lanes.make(self.segment.core, self.num_lanes, self.lane_rows + 1, fields, format_at=format_at)

    @property
    def nbytes(self) -> int:
        return self.segment.num_bytes

    def writer(self, lanes: Iterable[int] | None = None, go_on: Iterable[int] = ()) -> Writer:
        """The right to write these lanes (all, if none are named); a writer that had it before is refused from now on.

        Lanes named in `go_on` continue the episode of their newest row; the others begin a new one.
        """
        return Writer(self, range(self.num_lanes) if lanes is None else lanes, go_on)

    def save(self, path: Path) -> None:
        """Writes all rows there are into a new file. No process may write the lanes meanwhile."""
        with open(path, "xb") as file:
            for first, count in [(0, self.core.head_bytes()), *self.core.used()]:
                for part in range(0, count, COPY_BYTES):
                    file.write(os.pread(self.segment.core.fd, min(COPY_BYTES, count - part), first + part))

    def restore(self, path: Path) -> None:
        """Reads what `save` wrote from lanes of the same spec and sizes. No process may read or write them meanwhile."""
        size = path.stat().st_size
        with open(path, "rb") as file:
            self._fill(file, 0, self.core.head_bytes(), path)
            for first, count in self.core.used():
                self._fill(file, first, count, path)
            if file.tell() != size:
                raise CheckpointError(
                    f"{path} has {size} bytes, these lanes take {file.tell()}: it was saved from other lanes."
                )

    def _fill(self, file: BinaryIO, first: int, count: int, path: Path) -> None:
        for part in range(0, count, COPY_BYTES):
            want = min(COPY_BYTES, count - part)
            data = file.read(want)
            if len(data) != want:
                raise CheckpointError(
                    f"{path} ends after {file.tell()} bytes, in the middle of its rows: the file is incomplete."
                )
            os.pwrite(self.segment.core.fd, data, first + part)

    def rows_written(self) -> int:
        """Rows committed so far in all lanes."""
        return self.core.rows()


class Writer:
    """One actor's side of its lanes. A restarted actor opens a new writer; its lanes begin a new episode.

    `begin(lanes)` says that their next rows begin episodes. An episode that did not end is cut there: nothing is known of what its
    newest action did, so nobody learns from that row.
    """

    def __init__(self, lanes: Lanes, own: Iterable[int], go_on: Iterable[int]) -> None:
        self.spec = lanes.spec
        self._core = lanes.core.writer([int(lane) for lane in own], [int(lane) for lane in go_on])
        # Looked up once: both are on the path of every step.
        self._append, self.begin = self._core.append, self._core.begin
        self._in_order = itemgetter(*self.spec.names)

    def epoch(self, lane: int) -> int:
        return self._core.epoch(lane)

    def append(
        self,
        lanes: Array,
        fields: Mapping[str, Array],
        reward: Array,
        terminated: Array,
        truncated: Array,
        version: int = 0,
        priority: Array | None = None,
    ) -> int:
        """Writes row i of every array into lane `lanes[i]`, in order; a lane may come more than once.

        Arrays are C-contiguous and of the spec's dtype (lanes int64, reward float32, flags bool): nothing is converted.
        Everything is checked before anything is written. Gives the number of rows.
        """
        try:
            sources = self._in_order(fields)
        except KeyError:
            sources = ()
        if len(sources) != len(fields):
            raise ReplayError(
                f"a row has the fields {', '.join(self.spec.names)}; these were given: {', '.join(fields)}."
            )
        return self._append(lanes, sources, reward, terminated, truncated, version, priority)


@dataclass(frozen=True)
class Bootstrap:
    """What came back for the newest action of some lanes and is in no row yet: the reward, and the value of the new state."""

    lanes: Array
    reward: Array
    value: Array


class Rows(NamedTuple):
    """Rows of all lanes [lanes, places], in the order of each lane's time, with what came back for their actions."""

    numbers: Array  # in the lane
    at: Array  # in the reader's columns
    exists: Array  # False beyond a lane's newest row
    flags: Array
    step: Array
    version: Array  # of the policy that acted
    reward: Array  # of the action
    value: Array
    next_value: Array  # of the state after the action
    waits: Array  # the outcome of the action is not there yet


class Reader:
    """Rows of all lanes, read where they lie; with a `stack` observations come with those before them.

    `columns` has the reward, flags, step, version and fields of all rows as arrays, lane after lane: see `at`.
    """

    def __init__(self, lanes: Lanes, stack: int = 1) -> None:
        self.num_lanes, self._core, self._stack = lanes.num_lanes, lanes.core, stack
        self._slots, self._readable = lanes.lane_rows + 1, lanes.lane_rows + 1 - stack
        self.base = np.array([lanes.core.base(lane) for lane in range(lanes.num_lanes)], np.int64)
        self._obs = [f.name for f in lanes.spec.fields if f.is_observation]
        memory = mmap.mmap(lanes.segment.core.fd, lanes.segment.num_bytes, access=mmap.ACCESS_READ)
        stride, begin = 8 * (META_WORDS + lanes.spec.payload_words), lanes.core.head_bytes()

        def column(dtype: str, offset: int, shape: tuple[int, ...] = ()) -> Array:
            item, count = np.dtype(dtype), lanes.num_lanes * self._slots
            strides = (stride, *np.empty(shape, item).strides)
            made: Array = np.ndarray((count, *shape), item, memory, begin + offset, strides)
            return made

        self.columns = {"reward": column("float32", 0), "flags": column("uint32", 4)}
        self.columns |= {"step": column("int64", 8), "version": column("int64", 16)}
        offset = 8 * META_WORDS
        for field in lanes.spec.fields:
            self.columns[field.name] = column(field.dtype, offset, field.shape)
            offset += 8 * field.num_words

    def rows(self, first: Array, heads: Array, bootstrap: Bootstrap | None) -> Rows:
        """All rows of each lane from `first` on. Policies of such rows have added the column `value`."""
        columns, counts = self.columns, heads - first
        places = np.arange(max(int(counts.max()), 1))
        exists = places < counts[:, None]
        numbers = first[:, None] + places
        at = self.at(np.arange(self.num_lanes)[:, None], numbers)
        flags, value = columns["flags"][at] * exists, columns[VALUE][at]
        reward, next_value = next_place(columns["reward"][at]), next_place(value)
        waits = exists & (flags == 0) & ~next_place(exists)
        if bootstrap is not None:
            has_row = counts[bootstrap.lanes] > 0
            of = (bootstrap.lanes[has_row], counts[bootstrap.lanes[has_row]] - 1)
            reward[of], next_value[of], waits[of] = bootstrap.reward[has_row], bootstrap.value[has_row], False
        step, version = columns["step"][at], columns["version"][at]
        return Rows(numbers, at, exists, flags, step, version, reward, value, next_value, waits)

    def heads(self) -> Array:
        """The number that the next row of each lane will have."""
        return np.array([self._core.head(lane) for lane in range(self.num_lanes)], np.int64)

    def readable(self, first: Array, heads: Array) -> Array:
        """`first`, or the oldest row that a lane still has; a stack needs the rows before its own."""
        oldest: Array = np.maximum(first, heads - self._readable)
        return oldest

    def at(self, lanes: Array, numbers: Array) -> Array:
        """The places of these rows in `columns`."""
        at: Array = lanes * self._slots + (numbers - self.base[lanes]) % self._slots
        return at

    def obs(self, lanes: Array, numbers: Array, step: Array) -> dict[str, Array]:
        """Observations of these rows [n, ...], or [n, stack, ...]: before an episode's first one stands the first itself."""
        if self._stack > 1:
            back = np.minimum(np.arange(self._stack - 1, -1, -1), step[:, None].astype(np.int64))
            lanes, numbers = lanes[:, None], numbers[:, None] - back
        at = self.at(lanes, numbers)
        return {name: self.columns[name][at] for name in self._obs}

    def check_intact(self, first: Array) -> None:
        """After rows from `first` on were read: refuses them if a writer came round meanwhile."""
        behind = self.heads() - first
        if (behind > self._readable).any():
            raise ReplayError(
                f"lane {int(behind.argmax())} was written over while its rows were read: {int(behind.max())} rows are in "
                f"flight, and it keeps {self._slots - 1}. Hold the actors back, or give the lanes more rows."
            )


class Bootstraps(Shared):
    """Of each lane: the reward and the next value of its newest action, and how many rows the lane had then.

    A bootstrap is valid as long as the lane has that many rows: the next row says the same. Each lane's is written by the actor that
    writes the lane.
    """

    handed = ("num_lanes", "segment")

    def __init__(self, num_lanes: int) -> None:
        self.num_lanes = num_lanes
        self.segment = Segment.create(BOOTSTRAP_BYTES * num_lanes, "the bootstraps of the lanes")
        self._open()
        self._rows[:] = NO_OUTCOME

    def _open(self, format_at: int | None = None) -> None:
        n = self.num_lanes
        memory = mmap.mmap(self.segment.core.fd, self.segment.num_bytes)
        self._rows: Array = np.ndarray(n, np.int64, memory)
        self._reward: Array = np.ndarray(n, np.float32, memory, 8 * n)
        self._value: Array = np.ndarray(n, np.float32, memory, 12 * n)

    def put(self, bootstrap: Bootstrap, lanes: Lanes) -> None:
        """By the actor that writes these lanes, which writes none of them meanwhile."""
        # Void while it changes: a reader that sees the same count before and after its copy has a whole one.
        self._rows[bootstrap.lanes] = NO_OUTCOME
        self._reward[bootstrap.lanes], self._value[bootstrap.lanes] = bootstrap.reward, bootstrap.value
        self._rows[bootstrap.lanes] = [lanes.core.head(lane) for lane in bootstrap.lanes.tolist()]

    def of(self, heads: Array) -> Bootstrap:
        """The bootstraps of lanes that have so many rows."""
        before = self._rows == heads
        reward, value = self._reward.copy(), self._value.copy()
        lanes = np.flatnonzero(before & (self._rows == heads))
        return Bootstrap(lanes, reward[lanes], value[lanes])


def next_place(x: Array) -> Array:
    """What stands at the next place of each lane; 0 after the last."""
    made = np.zeros_like(x)
    made[:, :-1] = x[:, 1:]
    return made


def as_tensors(fields: Mapping[str, Array], device: torch.device | str = "cpu") -> Any:
    """Observation fields as a network takes them: one tensor, or a dict of the parts of a nested space."""
    return as_observation({name: torch.from_numpy(rows).to(device) for name, rows in fields.items()})


def forecast_bytes(spec: RowSpec, num_lanes: int, lane_rows: int) -> int:
    """Bytes of shared memory such lanes take."""
    return _core.Lanes.num_bytes(num_lanes, lane_rows + 1, spec.payload_words)
