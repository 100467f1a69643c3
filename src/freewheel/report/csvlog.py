"""metrics.csv and episodes.csv.

metrics.csv is wide: one row per logged step, one column per name. A name that first comes later gets a column at the right: the
file is then written anew beside the old one, with empty cells above, and takes its place. A name that is absent from a row leaves
its cell empty. A resumed run appends below the same header.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TextIO

from freewheel.report.episodes import Episode
from freewheel.report.sink import Record, Scalars

EPISODE_COLUMNS = ["step", "lane", "return", "length", "seconds"]
# Each new column writes the file anew; names that are made up without end (one per episode, say) must not.
MOST_COLUMNS = 500


class MetricsCsv:
    """Scalars, one row per logged step: step, time (Unix seconds), then a column per name."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._table = _Table(path, ["step", "time"])

    def open(self) -> None:
        self._table.open()

    def write(self, records: Sequence[Record]) -> None:
        rows = [
            {"step": row.step, "time": round(record.time_s, 3), **row.values}
            for record in records
            if isinstance(row := record.row, Scalars)
        ]
        self._table.widen(name for row in rows for name in row)
        self._table.append([[row.get(column, "") for column in self._table.columns] for row in rows])

    def close(self) -> None:
        self._table.close()


class EpisodesCsv:
    """Finished episodes, one row each; with several policies, each with the name of the one that played it."""

    def __init__(self, path: Path, has_policies: bool = False) -> None:
        self.name = path.name
        self._has_policies = has_policies
        self._table = _Table(path, [*EPISODE_COLUMNS, "policy"] if has_policies else EPISODE_COLUMNS)

    def open(self) -> None:
        self._table.open()

    def write(self, records: Sequence[Record]) -> None:
        rows = [record.row for record in records if isinstance(record.row, Episode)]
        self._table.append([self._cells(row) for row in rows])

    def close(self) -> None:
        self._table.close()

    def _cells(self, row: Episode) -> list[object]:
        cells: list[object] = [row.step, row.lane, row.ret, row.length, round(row.seconds, 3)]
        return [*cells, row.policy] if self._has_policies else cells


class _Table:
    """A CSV file that rows are added to, with whatever header it already has."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.columns = list(columns)
        self._least = list(columns)
        self._path = path
        self._file: TextIO | None = None

    def open(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._path.exists():
            _cut_torn_row(self._path)
            with open(self._path, newline="") as file:
                self.columns = next(csv.reader(file), []) or self.columns
        if self.columns[: len(self._least)] != self._least:
            raise ValueError(f"its columns are {self.columns[:8]}, not {self._least} first; move it away")
        self._file = open(self._path, "a", newline="")  # noqa: SIM115 - it stays open until close
        if self._file.tell() == 0:
            self.append([self.columns])

    def widen(self, names: Iterable[str]) -> None:
        """Adds columns for the names that have none."""
        new = [name for name in dict.fromkeys(names) if name not in self.columns]
        if not new:
            return
        if len(self.columns) + len(new) > MOST_COLUMNS:
            raise ValueError(f"{len(self.columns) + len(new)} columns; metrics take {MOST_COLUMNS} names")
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

    def append(self, rows: Sequence[Sequence[object]]) -> None:
        if self._file is None or not rows:
            return
        csv.writer(self._file).writerows(rows)
        self._file.flush()  # to the kernel: a killed process loses no more than the batch it was writing

    def close(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            file.close()


def _cut_torn_row(path: Path) -> None:
    """Cuts what follows the last newline: a row that its writer did not live to finish."""
    with open(path, "r+b") as file:
        end = size = file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - 4096)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        if end < size:
            file.truncate(end)
