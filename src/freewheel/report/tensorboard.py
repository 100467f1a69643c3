"""TensorBoard event files. The sink's thread imports the library, because that takes seconds."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from freewheel.config.assemble import flat
from freewheel.report.episodes import Episode
from freewheel.report.sink import Record


class TensorBoardLog:
    """Metrics by name, episodes as episode/return and episode/length, the settings as text.

    With several policies, the names of an episode begin with its policy: red/episode/return. `resumed_at` is the step of a
    resumed run: TensorBoard then hides what an earlier process wrote after it.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any] | None = None, resumed_at: int | None = None) -> None:
        self.name = "TensorBoard"
        self._folder = folder
        self._config = dict(config or {})
        self._resumed_at = resumed_at
        self._writer: Any = None

    def open(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # It has its own queue and thread, which flushes every few seconds.
        self._writer = SummaryWriter(str(self._folder), purge_step=self._resumed_at, flush_secs=10)
        if self._config:
            self._writer.add_text("config", _as_table(self._config), global_step=self._resumed_at or 0)

    def write(self, records: Sequence[Record]) -> None:
        for record in records:
            row, time_s = record.row, record.time_s
            if isinstance(row, Episode):
                prefix = f"{row.policy}/" if row.policy else ""
                self._writer.add_scalar(f"{prefix}episode/return", row.ret, row.step, walltime=time_s)
                self._writer.add_scalar(f"{prefix}episode/length", row.length, row.step, walltime=time_s)
                continue
            for name, value in row.values.items():
                self._writer.add_scalar(name, value, row.step, walltime=time_s)

    def close(self) -> None:
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.close()


def write_clip(folder: Path, name: str, step: int, gif: bytes, sides: tuple[int, int]) -> None:
    """Writes a film as an image of the run, in its own event file. `sides` are its width and height."""
    from tensorboard.compat.proto.event_pb2 import Event  # type: ignore[import-untyped]
    from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]
    from tensorboard.summary.writer.event_file_writer import EventFileWriter  # type: ignore[import-untyped]

    image = Summary.Image(width=sides[0], height=sides[1], colorspace=3, encoded_image_string=gif)
    summary = Summary(value=[Summary.Value(tag=name, image=image)])
    writer = EventFileWriter(str(folder), filename_suffix=f".{name}.{step}")
    try:
        writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))
    finally:
        writer.close()


def _as_table(config: Mapping[str, Any]) -> str:
    """A Markdown table of the settings by dotted name."""
    lines = ["| setting | value |", "|---|---|"]
    lines += [f"| {name} | `{json.dumps(value, default=str)}` |" for name, value in flat(config).items()]
    return "\n".join(lines)
