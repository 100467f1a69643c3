"""TensorBoard event files. The sink's thread imports the library, because that takes a second."""

from __future__ import annotations

import itertools
import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from freewheel.config.assemble import flat
from freewheel.report.episodes import Episode
from freewheel.report.sink import Record

_numbers = itertools.count()


class EventFile:
    """A new event file. The library's own writer has a thread, in which an error is an error of nobody."""

    def __init__(self, folder: Path, suffix: str = "") -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2  # type: ignore[import-untyped]
        from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]

        self.events, self.summaries = event_pb2, summary_pb2
        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads files of the same second in the order of their names.
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{next(_numbers):06d}"
        self._file = open(folder / (name + suffix), "xb")  # noqa: SIM115 - it stays open until close
        self._records = RecordWriter(self._file)
        self.add(time.time(), file_version="brain.Event:2")

    def add(self, time_s: float, **parts: Any) -> None:
        self._records.write(self.events.Event(wall_time=time_s, **parts).SerializeToString())

    def value(self, time_s: float, step: int, tag: str, **value: Any) -> None:
        summary = self.summaries.Summary(value=[self.summaries.Summary.Value(tag=tag, **value)])
        self.add(time_s, step=step, summary=summary)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


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
        self._file: EventFile | None = None

    def open(self) -> None:
        file = self._file = EventFile(self._folder)
        if self._resumed_at is not None:
            start = file.events.SessionLog(status=file.events.SessionLog.START)
            file.add(time.time(), step=self._resumed_at, session_log=start)
        if self._config:
            _write_text(file, "config", self._resumed_at or 0, _as_table(self._config))
        file.flush()

    def write(self, records: Sequence[Record]) -> None:
        assert self._file is not None
        value = self._file.value
        for record in records:
            row, time_s = record.row, record.time_s
            if isinstance(row, Episode):
                prefix = f"{row.policy}/" if row.policy else ""
                value(time_s, row.step, f"{prefix}episode/return", simple_value=row.ret)
                value(time_s, row.step, f"{prefix}episode/length", simple_value=row.length)
                continue
            for name, number in row.values.items():
                value(time_s, row.step, name, simple_value=number)
        self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            file.close()


def write_clip(folder: Path, name: str, step: int, gif: bytes, sides: tuple[int, int]) -> None:
    """Writes a film as an image of the run, in its own event file. `sides` are its width and height."""
    file = EventFile(folder, f".{name}.{step}")
    try:
        image = file.summaries.Summary.Image(width=sides[0], height=sides[1], colorspace=3, encoded_image_string=gif)
        file.value(time.time(), step, name, image=image)
    finally:
        file.close()


def _write_text(file: EventFile, tag: str, step: int, text: str) -> None:
    from tensorboard.compat.proto.tensor_pb2 import TensorProto  # type: ignore[import-untyped]
    from tensorboard.compat.proto.types_pb2 import DT_STRING  # type: ignore[import-untyped]

    metadata = file.summaries.SummaryMetadata(plugin_data={"plugin_name": "text"})
    tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode()], tensor_shape={"dim": [{"size": 1}]})
    file.value(time.time(), step, f"{tag}/text_summary", metadata=metadata, tensor=tensor)


def _as_table(config: Mapping[str, Any]) -> str:
    """A Markdown table of the settings by dotted name."""
    lines = ["| setting | value |", "|---|---|"]
    lines += [f"| {name} | `{json.dumps(value, default=str)}` |" for name, value in flat(config).items()]
    return "\n".join(lines)
