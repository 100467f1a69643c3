"""metrics.csv and episodes.csv.

metrics.csv has one row per logged step and one column per metric. A new metric adds a column at the right: the file is
rewritten beside the old one, with empty cells in the earlier rows, and replaces it. A row without a metric has an empty cell.
A resumed run appends below the same header.
"""

from __future__ import annotations

import csv
import mmap
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TextIO

from freewheel.report.episodes import Episode
from freewheel.report.sink import Metrics, Record

EPISODE_COLUMNS = ["step", "lane", "return", "length", "seconds"]
# Each new column rewrites the file, so names must not be made up without end (one per episode, say).
MOST_COLUMNS = 500


class _CsvLog:
    """A CSV file that rows are appended to, below the header it already has."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.name = path.name
        self.columns = list(columns)
        self._first = list(columns)
        self._path = path
        self._file: TextIO | None = None

    def open(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._path.exists():
            _cut_torn_row(self._path)
            with open(self._path, newline="") as file:
                self.columns = next(csv.reader(file), []) or self.columns
        if self.columns[: len(self._first)] != self._first:
            raise ValueError(f"its columns are {self.columns[:8]} and must begin with {self._first}; move it away")
        self._file = open(self._path, "a", newline="")  # noqa: SIM115 - it stays open until close
        if self._file.tell() == 0:
            self._append([self.columns])

    def close(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            file.close()

    def _append(self, rows: Sequence[Sequence[object]]) -> None:
        if self._file is None or not rows:
            return
        csv.writer(self._file).writerows(rows)
        self._file.flush()  # to the kernel: a killed process loses at most the batch it was writing

    def _widen(self, names: Iterable[str]) -> None:
        """Adds a column for each new name."""
        new = [name for name in dict.fromkeys(names) if name not in self.columns]
        if not new:
            return
        if len(self.columns) + len(new) > MOST_COLUMNS:
            raise ValueError(f"{len(self.columns) + len(new)} columns; at most {MOST_COLUMNS} are allowed")
        self.close()
        temp = self._path.with_name(f".{self._path.name}.wider")
        try:
            with open(self._path, newline="") as old, open(temp, "w", newline="") as wider:
                rows, writer = csv.reader(old), csv.writer(wider)
                writer.writerow(next(rows) + new)
                writer.writerows(row + [""] * len(new) for row in rows)
            os.replace(temp, self._path)
        finally:
            temp.unlink(missing_ok=True)
        self.open()


class MetricsCsv(_CsvLog):
    """Metrics, one row per logged step: step, time (Unix seconds), then one column per metric."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, ["step", "time"])

    def write(self, records: Sequence[Record]) -> None:
        rows = [
            {"step": row.step, "time": round(record.time_s, 3), **row.values}
            for record in records
            if isinstance(row := record.row, Metrics)
        ]
        self._widen(name for row in rows for name in row)
        self._append([[row.get(column, "") for column in self.columns] for row in rows])


class EpisodesCsv(_CsvLog):
    """Finished episodes, one row each; with several policies, the last column names the policy."""

    def __init__(self, path: Path, has_policies: bool = False) -> None:
        super().__init__(path, [*EPISODE_COLUMNS, "policy"] if has_policies else EPISODE_COLUMNS)

    def write(self, records: Sequence[Record]) -> None:
        rows = [record.row for record in records if isinstance(record.row, Episode)]
        cells = [(row.step, row.lane, row.ret, row.length, round(row.seconds, 3), row.policy) for row in rows]
        self._append([row[: len(self._first)] for row in cells])


def _cut_torn_row(path: Path) -> None:
    """Cuts everything after the last newline: a row whose writer died before it was complete."""
    with open(path, "r+b") as file:
        if file.seek(0, os.SEEK_END):  # an empty file cannot be mapped
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                end = content.rfind(b"\n") + 1
            file.truncate(end)
