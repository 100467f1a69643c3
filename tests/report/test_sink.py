"""The sink and its logs: nobody who logs waits, nothing taken is lost, a log that fails ends alone."""

from __future__ import annotations

import csv
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from freewheel.report.csvlog import EpisodesCsv, MetricsCsv
from freewheel.report.episodes import Episode
from freewheel.report.sink import BATCH_ROWS, Metrics, Record, Sink


class Kept:
    """A log that keeps what it gets; it can be slow, held or broken."""

    def __init__(self, gate: threading.Event | None = None, error: Exception | None = None) -> None:
        self.name = "kept"
        self.batches: list[list[Record]] = []
        self.calls: list[str] = []
        self.wrote = threading.Event()
        self._gate, self._error = gate, error

    def open(self) -> None:
        self.calls.append("open")

    def write(self, records: Sequence[Record]) -> None:
        if self._gate is not None:
            self._gate.wait(10)
        if self._error is not None:
            raise self._error
        self.batches.append(list(records))
        self.wrote.set()

    def close(self) -> None:
        self.calls.append("close")

    def steps(self) -> list[int]:
        return [record.row.step for batch in self.batches for record in batch]


def rows_of(path: Path) -> list[list[str]]:
    with open(path, newline="") as file:
        return list(csv.reader(file))


def test_all_is_written_in_order_on_close() -> None:
    kept = Kept()
    with Sink([kept]) as sink:
        for step in range(1_000):
            sink.metrics(step, {"loss": step})
    assert kept.steps() == list(range(1_000))
    assert kept.calls == ["open", "close"]
    assert sink.num_dropped == 0
    sink.close()
    assert kept.calls == ["open", "close"]


def test_a_full_batch_is_written_at_once_and_a_small_one_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept()
    monkeypatch.setattr("freewheel.report.sink.BATCH_S", 60.0)
    with Sink([kept]) as sink:
        for step in range(BATCH_ROWS):
            sink.metrics(step, {})
        assert kept.wrote.wait(20)
        assert len(kept.batches) == 1
        kept.wrote.clear()
        monkeypatch.setattr("freewheel.report.sink.BATCH_S", 0.1)
        sink.metrics(BATCH_ROWS, {})
        assert kept.wrote.wait(20)
        assert kept.steps() == list(range(BATCH_ROWS + 1))


def test_a_slow_log_makes_nobody_wait_and_drops_are_counted(capfd: pytest.CaptureFixture[str]) -> None:
    gate = threading.Event()
    kept = Kept(gate)
    sink = Sink([kept], most_waiting=200)
    start = time.monotonic()
    for step in range(10_000):
        sink.metrics(step, {"loss": 1.0})
    assert time.monotonic() - start < 5.0, "logging waited for the log"
    dropped = sink.num_dropped
    assert 9_000 < dropped < 10_000
    gate.set()
    sink.close()
    assert len(kept.steps()) == 10_000 - dropped
    assert kept.steps()[:100] == list(range(100))
    assert f"log: dropped {dropped:,} rows" in capfd.readouterr().err


def test_a_log_that_hangs_does_not_hang_the_end(capfd: pytest.CaptureFixture[str]) -> None:
    gate = threading.Event()
    sink = Sink([Kept(gate)])
    sink.metrics(1, {})
    sink.close(timeout_s=0.2)
    assert "did not finish within 0.2 s" in capfd.readouterr().err
    gate.set()
    sink._thread.join(10)


def test_a_log_that_fails_is_told_once_and_the_others_go_on(capfd: pytest.CaptureFixture[str]) -> None:
    broken, kept = Kept(error=OSError(28, "No space left on device")), Kept()
    with Sink([broken, kept]) as sink:
        for step in range(300):
            sink.metrics(step, {})
            if step % 100 == 99:
                assert kept.wrote.wait(10)
                kept.wrote.clear()
    assert kept.steps() == list(range(300))
    assert broken.calls == ["open", "close"]
    assert sink.num_dropped == 300
    told = capfd.readouterr().err.splitlines()
    assert told == [
        "log: kept cannot be written: No space left on device. This log ends here; training goes on.",
        "log: kept misses 300 records.",
    ]


def test_values_are_those_of_the_moment() -> None:
    kept, loss = Kept(), torch.tensor(1.0)
    with Sink([kept]) as sink:
        sink.metrics(1, {"loss": loss})
        loss.fill_(2.0)
    row = kept.batches[0][0].row
    assert isinstance(row, Metrics)
    assert row.values == {"loss": 1.0}


CRASH = """
import sys
from pathlib import Path
from freewheel.report.csvlog import EpisodesCsv, MetricsCsv
from freewheel.report.episodes import Episode
from freewheel.report.sink import Sink
sink = Sink([MetricsCsv(Path("metrics.csv")), EpisodesCsv(Path("episodes.csv"))])
for step in range(250):
    sink.metrics(step, {"loss": 0.5})
    sink.episodes([Episode(0, 1.0, 2, step, 0.1)])
END
"""


@pytest.mark.parametrize("end", ["raise RuntimeError('boom')", "sys.exit(3)", "raise KeyboardInterrupt", "pass"])
def test_nothing_is_lost_when_the_process_ends_without_close(tmp_path: Path, end: str) -> None:
    child = [sys.executable, "-W", "error", "-c", CRASH.replace("END", end)]
    done = subprocess.run(child, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode == 0) == (end == "pass"), done.stderr
    assert [row[0] for row in rows_of(tmp_path / "metrics.csv")] == ["step", *map(str, range(250))]
    assert [row[0] for row in rows_of(tmp_path / "episodes.csv")] == ["step", *map(str, range(250))]


def test_metrics_grow_columns_and_resume_below_the_same_header(tmp_path: Path) -> None:
    path = tmp_path / "run" / "metrics.csv"
    with Sink([MetricsCsv(path)]) as sink:
        sink.metrics(1, {"loss": 0.1 + 0.2, "epsilon": 1})
    with Sink([MetricsCsv(path)]) as sink:
        sink.metrics(2, {"epsilon": 0.5, "loss": float("nan")})
        sink.metrics(3, {"q, mean": 7, "epsilon": 0.25})
    rows = rows_of(path)
    assert rows[0] == ["step", "time", "loss", "epsilon", "q, mean"]
    assert [row[:1] + row[2:] for row in rows[1:]] == [
        ["1", "0.30000000000000004", "1.0", ""],
        ["2", "nan", "0.5", ""],
        ["3", "", "0.25", "7.0"],
    ]
    assert abs(float(rows[1][1]) - time.time()) < 100
    assert [file.name for file in path.parent.iterdir()] == ["metrics.csv"]


def test_a_torn_last_row_is_cut_before_more_is_appended(tmp_path: Path) -> None:
    path = tmp_path / "episodes.csv"
    header = "step,lane,return,length,seconds\r\n"
    for torn, whole in ((header + "5,0,1.0,9,0.1\r\n6,0,1", 1), ("step,la", 0), ("", 0), (header + "7," * 9_000, 0)):
        path.write_text(torn, newline="")
        with Sink([EpisodesCsv(path)]) as sink:
            sink.episodes([Episode(lane=3, ret=-1.5, length=8, step=7, seconds=0.25)])
        rows = rows_of(path)
        assert rows[0] == ["step", "lane", "return", "length", "seconds"]
        assert rows[1 + whole :] == [["7", "3", "-1.5", "8", "0.25"]]


def test_a_foreign_file_in_the_place_is_left_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("my,notes\n1,2\n")
    with Sink([MetricsCsv(path)]) as sink:
        sink.metrics(1, {"loss": 1})
    assert path.read_text() == "my,notes\n1,2\n"
    assert "move it away" in capfd.readouterr().err


def test_endless_names_end_the_log_and_not_the_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with Sink([MetricsCsv(tmp_path / "metrics.csv")]) as sink:
        for step in range(600):
            sink.metrics(step, {f"episode {step}": 1})
    assert "at most 500 are allowed" in capfd.readouterr().err


def test_a_full_disk_ends_the_log_and_not_the_run(capfd: pytest.CaptureFixture[str]) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this machine has no /dev/full")
    log = EpisodesCsv(full)
    log.open = lambda: setattr(log, "_file", open(full, "w"))  # type: ignore[method-assign] # noqa: SIM115
    with Sink([log]) as sink:
        sink.episodes([Episode(0, 1.0, 1)])
    assert "No space left on device" in capfd.readouterr().err
