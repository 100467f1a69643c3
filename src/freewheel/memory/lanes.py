"""Lanes: rings of rows in shared memory, one writer each."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from freewheel import _core
from freewheel.errors import CheckpointError, ConfigError, ReplayError
from freewheel.memory.segment import Segment, format_bytes
from freewheel.spec import RowSpec

# A piece of a saved replay: large enough for the disk, small beside the replay.
COPY_BYTES = 16 << 20


class Lanes:
    """`num_lanes` rings that keep the newest `lane_rows` rows each.

    A row is an observation, the reward and end flags that *arrived* with it, and the action chosen from it. The reward
    of an action therefore stands in the row after it, each observation is stored once, and an episode's final
    observation is a row with `terminated` or `truncated` set, whose action is not stored.

    Hand it to child processes as a `Process` argument (forkserver or spawn). `first_row` sets where row numbers begin.
    """

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

    def _open(self, format_at: int | None) -> None:
        fields = [
            (f.name, np.dtype(f.dtype).kind, np.dtype(f.dtype).itemsize, list(f.shape), f.is_observation)
            for f in self.spec.fields
        ]
        self.core = _core.Lanes.make(self.segment.core, self.num_lanes, self.lane_rows + 1, fields, format_at=format_at)

    def __getstate__(self) -> tuple[RowSpec, int, int, Segment]:
        return self.spec, self.num_lanes, self.lane_rows, self.segment

    def __setstate__(self, state: tuple[RowSpec, int, int, Segment]) -> None:
        self.spec, self.num_lanes, self.lane_rows, self.segment = state
        self._open(None)

    @property
    def nbytes(self) -> int:
        return self.segment.num_bytes

    def writer(self, lanes: Iterable[int] | None = None, go_on: Iterable[int] = ()) -> Writer:
        """The right to write these lanes (all, if none are named); a writer that had it before is refused from now on.

        Lanes named in `go_on` continue the episode of their newest row; the others begin a new one.
        """
        return Writer(self, range(self.num_lanes) if lanes is None else lanes, go_on)

    def save(self, path: Path) -> None:
        """Writes all rows there are into a new file. Nobody may write the lanes meanwhile."""
        with open(path, "xb") as file:
            for first, count in [(0, self.core.head_bytes()), *self.core.used()]:
                for part in range(0, count, COPY_BYTES):
                    file.write(os.pread(self.segment.core.fd, min(COPY_BYTES, count - part), first + part))

    def restore(self, path: Path) -> None:
        """Reads what `save` wrote from lanes of the same spec and sizes. Nobody may read or write them meanwhile."""
        size = path.stat().st_size
        with open(path, "rb") as file:
            self._fill(file, 0, self.core.head_bytes(), path)
            for first, count in self.core.used():
                self._fill(file, first, count, path)
            if file.tell() != size:
                raise CheckpointError(
                    f"{path} has {size} bytes, these lanes take {file.tell()}: it is another replay's."
                )

    def _fill(self, file: BinaryIO, first: int, count: int, path: Path) -> None:
        for part in range(0, count, COPY_BYTES):
            want = min(COPY_BYTES, count - part)
            data = file.read(want)
            if len(data) != want:
                raise CheckpointError(f"{path} ends after {file.tell()} bytes, before its rows do: it is cut off.")
            os.pwrite(self.segment.core.fd, data, first + part)

    def rows_written(self) -> int:
        """Rows committed so far in all lanes."""
        return self.core.rows()

    def wait_rows(self, count: int, timeout_s: float) -> bool:
        """Sleeps until so many rows were written; False when the time is over first."""
        return self.core.wait_rows(count, timeout_s)


class Writer:
    """One actor's side of its lanes. A restarted actor opens a new writer; its lanes begin a new episode."""

    def __init__(self, lanes: Lanes, own: Iterable[int], go_on: Iterable[int]) -> None:
        self.spec = lanes.spec
        self._core = lanes.core.writer([int(lane) for lane in own], [int(lane) for lane in go_on])
        # Looked up once: both are on the path of every step.
        self._append = self._core.append
        self._in_order = itemgetter(*self.spec.names)

    def epoch(self, lane: int) -> int:
        return self._core.epoch(lane)

    def append(
        self,
        lanes: np.ndarray[Any, Any],
        fields: Mapping[str, np.ndarray[Any, Any]],
        reward: np.ndarray[Any, Any],
        terminated: np.ndarray[Any, Any],
        truncated: np.ndarray[Any, Any],
        version: int = 0,
        priority: np.ndarray[Any, Any] | None = None,
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


def forecast_bytes(spec: RowSpec, num_lanes: int, lane_rows: int) -> int:
    """Bytes of shared memory such lanes take."""
    return _core.Lanes.num_bytes(num_lanes, lane_rows + 1, spec.payload_words)
