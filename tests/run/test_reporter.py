"""What a run tells while it goes on: its status is fresh, however seldom metrics are logged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from run_cases import RUNTIMES, logged, train

from freewheel import Callback, Moment
from freewheel.cli import runs as cli_runs
from freewheel.config.settings import LogConfig
from freewheel.report.progress import Progress
from freewheel.report.sink import Sink
from freewheel.run import reporter as reporters
from freewheel.run.reporter import STATUS_S, Reporter
from freewheel.store.folder import RunFolder


@pytest.mark.parametrize("every_s", [0.0, 1.0, 60.0])
@pytest.mark.parametrize("from_s", [0.0, 5000.0])
def test_the_status_is_written_every_two_seconds(every_s: float, from_s: float) -> None:
    written: list[float] = []
    moment = Moment(seconds=from_s)
    with Sink([]) as sink, Progress(10, is_quiet=True) as progress:
        reporter = Reporter(
            sink,
            progress,
            [],
            moment,
            LogConfig(every_s=every_s, thin_after=0),
            lambda: written.append(moment.seconds - from_s),
        )
        num_logs = 0
        for tenth in range(100):
            moment.seconds = from_s + tenth / 10
            num_logs += reporter.is_due()
    assert STATUS_S == 2.0
    assert written == pytest.approx([2.0, 4.0, 6.0, 8.0], abs=0.11)
    assert num_logs == (100 if not every_s else 10 if every_s == 1.0 else 1)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_the_status_is_written_with_each_checkpoint(
    runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that dies is not shown with fewer steps than its newest checkpoint has."""
    monkeypatch.setattr(reporters, "STATUS_S", 1e6)
    written: list[int] = []
    write = RunFolder.write_status

    def note(folder: RunFolder, status: str, **figures: Any) -> None:
        written.append(figures["steps"])
        write(folder, status, **figures)

    monkeypatch.setattr(RunFolder, "write_status", note)
    saved: list[int] = []

    class Saved(Callback):
        def on_checkpoint(self, moment: Moment, path: Path) -> None:
            saved.append(int(path.name.removeprefix("step-")))
            if len(saved) == 3:
                moment.stop()

    train(tmp_path, "dqn", runtime, steps=50_000, callbacks=[Saved()], settings={"checkpoint.every_steps": 200})
    first, *during, last = written
    assert first == 0
    assert during, "nothing was written between the first step and the last"
    assert max(during) >= saved[0]
    assert last >= max(saved)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_runs_shows_newer_steps_while_a_run_goes_on(
    runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reporters, "STATUS_S", 0.1)
    seen: list[dict[str, Any]] = []

    class Look(Callback):
        """As somebody at another terminal."""

        def on_step(self, moment: Moment) -> None:
            if moment.is_stopping:
                return
            capsys.readouterr()
            cli_runs.main(["--root", str(tmp_path), "--json"])
            (line,) = json.loads(capsys.readouterr().out)["runs"]
            if not seen or line["steps"] != seen[-1]["steps"]:
                seen.append(line)
            if len(seen) == 4:
                moment.stop()

    run = train(tmp_path, "dqn", runtime, steps=50_000, callbacks=[Look()], settings={"log.every_s": 1000.0})
    assert len(logged(run, "train/updates")) <= 1
    steps = [line["steps"] for line in seen]
    assert steps == sorted(set(steps))
    assert len(steps) == 4
    assert {line["status"] for line in seen} == {"running"}
    assert 0 < steps[-1] <= run.result["steps"] < 50_000
