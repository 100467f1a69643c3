"""TensorBoard: what is logged can be read back from the event files, also after a resume."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from freewheel.report.episodes import Episode
from freewheel.report.sink import Sink
from freewheel.report.tensorboard import TensorBoardLog


def read(folder: Path) -> Any:
    events = EventAccumulator(str(folder))
    events.Reload()
    return events


def values(events: Any, name: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in events.Scalars(name)]


def test_scalars_episodes_and_settings_come_back(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "tb"
    with Sink([TensorBoardLog(folder, {"learner": {"lr": 0.001}, "env": "CartPole-v1"})]) as sink:
        for step in (10, 20, 30):
            sink.metrics(step, {"loss": step / 4})
        sink.episodes([Episode(lane=0, ret=200.0, length=150, step=20)])
    with Sink([TensorBoardLog(folder, resumed_at=20)]) as sink:
        sink.metrics(21, {"loss": 9.0})
    events = read(folder)
    assert values(events, "loss") == [(10, 2.5), (21, 9.0)]
    assert values(events, "episode/return") == []
    text = events.Tensors("config/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "| learner.lr | `0.001` |" in text
    assert '| env | `"CartPole-v1"` |' in text
    assert capfd.readouterr().err == ""


def test_a_place_that_cannot_be_written_ends_the_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tb").write_text("a file")
    with Sink([TensorBoardLog(tmp_path / "tb")]) as sink:
        sink.metrics(1, {"loss": 1.0})
    assert "log: TensorBoard cannot be written" in capfd.readouterr().err


class FullLater(TensorBoardLog):
    """The disk is full once the file is there."""

    def open(self) -> None:
        super().open()
        assert self._file is not None
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, self._file._file.fileno())
        os.close(full)


def test_f24_a_disk_that_gets_full_is_told_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this machine has no /dev/full")
    with Sink([FullLater(tmp_path)]) as sink:
        sink.metrics(1, {"loss": 1.0})
    told = capfd.readouterr().err.splitlines()
    assert told == [
        "log: TensorBoard cannot be written: No space left on device. This log ends here; training goes on.",
        "log: TensorBoard misses 1 records.",
    ]
