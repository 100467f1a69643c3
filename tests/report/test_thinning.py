"""Logs of long runs: their size grows with the logarithm of the run, every part of the run is in them, and the user is told."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from freewheel.config.settings import LogConfig
from freewheel.report.csvlog import EpisodesCsv, MetricsCsv
from freewheel.report.episodes import Episode
from freewheel.report.progress import Progress
from freewheel.report.sink import Sink
from freewheel.report.tensorboard import TensorBoardLog
from freewheel.report.thinning import Thinning
from freewheel.run.callback import Callback, Moment
from freewheel.run.reporter import Reporter
from freewheel.store.checkpoint import Checkpoint


class Alone:
    """A policy without a name."""

    name = ""


ALONE: Any = [Alone()]


def kept(dense: int, length: int) -> list[int]:
    thinning = Thinning(dense)
    return [i for i in range(length) if thinning.keeps()]


def test_a_short_series_is_kept_whole() -> None:
    assert kept(50, 100) == list(range(100))  # of 50 to 99, one of every one
    assert kept(0, 5_000) == list(range(5_000))


def test_of_a_long_series_every_part_is_kept() -> None:
    dense, length = 100, 300_000
    found = kept(dense, length)
    assert len(found) == pytest.approx(dense * (1 + math.log(length / dense)), rel=0.1)
    last_half = [i for i in found if i >= length / 2]
    assert len(last_half) == pytest.approx(dense * math.log(2), rel=0.1)
    assert max(b - a for a, b in pairwise(last_half)) < 2 * length / dense


def test_lanes_that_end_in_the_same_order_are_all_kept() -> None:
    count = [0] * 8
    for i in kept(100, 200_000):
        count[i % 8] += 1
    assert min(count) > 0.6 * sum(count) / 8, count


class Told(Callback):
    def __init__(self) -> None:
        self.count = 0

    def on_episode(self, moment: Any, episode: Any) -> None:
        self.count += 1


def reporter(folder: Path, dense: int, told: Callback, moment: Moment) -> tuple[Sink, Reporter]:
    logs = [MetricsCsv(folder / "metrics.csv"), EpisodesCsv(folder / "episodes.csv"), TensorBoardLog(folder / "tb")]
    sink, progress = Sink(logs, most_waiting=10**9), Progress(10, is_quiet=True)
    return sink, Reporter(sink, progress, [told], moment, LogConfig(thin_after=dense))


def test_very_many_episodes_take_little_of_disk_and_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told, dense, count, at_once = Told(), 50, 200_000, 1_000
    moment = Moment()
    sink, one = reporter(tmp_path, dense, told, moment)
    with sink:
        for first in range(0, count, at_once):
            moment.step = first * 20
            one.finished([(0, Episode(i % 8, 1.0, 20, moment.step)) for i in range(at_once)], ALONE)
        one.log({"train/seconds": 1.0})
    expected = dense * (1 + math.log(count / dense))
    assert told.count == count  # callbacks miss none
    assert len(one.episodes) == pytest.approx(expected, rel=0.1)
    lines = (tmp_path / "episodes.csv").read_text().splitlines()
    assert len(lines) == len(one.episodes) + 1
    assert (tmp_path / "metrics.csv").read_text().splitlines()[1].split(",")[2] == f"{count:.1f}"  # train/episodes
    (events,) = (tmp_path / "tb").iterdir()
    assert events.stat().st_size < 2 * 80 * expected + 5_000
    assert capsys.readouterr().err.count("episodes: from here on the logs keep one of several") == 1


@pytest.mark.parametrize("every_s", [0.0, 1.0])
def test_metrics_of_a_month_are_a_few_thousand_rows(every_s: float, tmp_path: Path) -> None:
    dense, moment, month_s = 200, Moment(), 2_592_000
    sink, one = reporter(tmp_path, dense, Callback(), moment)
    with sink:
        num_rows, last_half = 0, 0
        for moment.seconds in range(1, month_s, 10):
            is_due = one.is_due()
            num_rows += is_due
            last_half += is_due and moment.seconds > month_s / 2
    assert num_rows < dense * (1 + math.log(month_s / dense)) * 1.05
    assert last_half == pytest.approx(dense * math.log(2), rel=0.05)


def test_a_resumed_run_goes_on_as_thin_as_it_was(tmp_path: Path) -> None:
    moment = Moment()
    sink, one = reporter(tmp_path, 10, Callback(), moment)
    saved = {
        "steps": 5,
        "updates": 1,
        "seconds": 3.0,
        "policies": {"red": {"episodes": {"num_finished": 600}}, "blue": {}},
    }
    saved["policies"]["blue"] = {"episodes": {"num_finished": 400}}
    with sink:
        one.resume_at(Checkpoint(tmp_path, 5, {}, saved, {}))
        one.finished([(0, Episode(0, 1.0, 20))] * 1_000, ALONE)
    assert len(one.episodes) == pytest.approx(10 * math.log(2), abs=3)
