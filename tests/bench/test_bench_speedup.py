"""`bench speedup`: ratios from shares, the prediction, and what is told. Nothing here asserts a speed."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from freewheel.bench import speedup
from freewheel.bench.settings import SpeedupSettings
from freewheel.bench.speedup import Point, make_case, plan, predicted, ratio_for
from freewheel.bench.trainings import Configuration
from freewheel.cli.main import main
from freewheel.errors import FreewheelError


@pytest.mark.parametrize("share", [0.1, 0.5, 0.7])
def test_the_ratio_gives_the_share(share: float) -> None:
    step_s, update_s = 40e-6, 1.2e-3
    updates_per_step = ratio_for(share, update_s / step_s) / 128
    learner_s = updates_per_step * update_s
    assert learner_s / (learner_s + step_s) == pytest.approx(share)


@pytest.mark.parametrize(
    ("share", "actors", "cores", "expected"),
    [
        (0.5, 1, 2, 2.0),
        (0.1, 1, 2, 1 / 0.9),
        (0.7, 1, 2, 1 / 0.7),
        (0.1, 2, 2, 2.0),  # 1 / 0.45 would be more than two cores can give
        (0.1, 2, 8, 1 / 0.45),
        (0.7, 2, 8, 1 / 0.7),
    ],
)
def test_amdahl(share: float, actors: int, cores: int, expected: float) -> None:
    assert predicted(share, actors, cores) == pytest.approx(expected)


def test_each_share_has_a_run_in_turn_and_one_per_number_of_actors() -> None:
    points = plan(SpeedupSettings(shares=(0.2, 0.5), actors=(1, 2), lanes=8), 30.0)
    assert [point.share for point in points] == [0.2, 0.5]
    orders = [points[1].in_turn.order, *(one.order for one in points[1].free.values())]
    assert [(order["runtime"], order["actors"]) for order in orders] == [("sequential", 0), ("local", 1), ("local", 2)]
    assert {order["ratio"] for order in orders} == {ratio_for(0.5, 30.0)}


def configuration(side: str, *windows: dict[str, Any]) -> Configuration:
    return Configuration("dqn", side, "a", Path("python"), "module", {}, list(windows))


def test_the_case_has_measured_beside_predicted() -> None:
    in_turn = configuration("sequential", {"steps_per_s": 1000.0, "updates_per_step": 0.03125, "learner_share": 0.4})
    free = configuration("ours", {"steps_per_s": 1500.0, "updates_per_step": 0.02, "account": {"closed": 0.99}})
    record = make_case(Point(0.5, 4.0, in_turn, {1: free}), 1, cores=2).record()
    assert (record["case"], record["unit"]) == ("speedup/50%/1_actor", "steps/s")
    assert (record["ours"], record["baselines"], record["ratio"]) == (1500.0, {"sequential": 1000.0}, 1.5)
    assert record["predicted"] == pytest.approx(1.667)  # by the share that was measured
    assert (record["training_share"], record["account"]) == (0.4, {"closed": 0.99})
    assert record["notes"] == ["dqn: ours, a: NOT the ratio of 4.00, but 2.56."]


def test_the_whole_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(self: Configuration, warm_s: float, seconds: float, versions: dict[str, str]) -> None:
        speed = 1000.0 if self.order["runtime"] == "sequential" else 1400.0
        window = {"steps_per_s": speed, "updates_per_step": self.order["ratio"] / 128, "learner_share": 0.5}
        self.windows.append(window)

    monkeypatch.setattr(Configuration, "measure", measure)
    path = tmp_path / "speedup.svg"
    speedup.run(SpeedupSettings(shares=(0.3, 0.5), actors=(1, 2), rounds=2, plot=path, json=True))
    out = capsys.readouterr().out
    line = json.loads(out.splitlines()[-1])
    assert line["bench"] == "speedup"
    assert [case["case"] for case in line["cases"]] == [
        "speedup/30%/1_actor",
        "speedup/30%/2_actors",
        "speedup/50%/1_actor",
        "speedup/50%/2_actors",
    ]
    assert all(case["ratio"] == 1.4 for case in line["cases"])
    assert "predicted" in out
    ET.fromstring(path.read_text())


def test_runs_that_fail_leave_their_share_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(self: Configuration, warm_s: float, seconds: float, versions: dict[str, str]) -> None:
        if self.order["runtime"] == "local":
            self.problem = "it died"
        else:
            self.windows.append({"steps_per_s": 1.0, "updates_per_step": 0.25, "learner_share": 0.5})

    monkeypatch.setattr(Configuration, "measure", measure)
    with pytest.raises(FreewheelError, match="no share of training gave all of its figures"):
        speedup.run(SpeedupSettings(rounds=1, plot=tmp_path / "plot.svg"))


def test_a_real_run_in_turn_tells_its_share() -> None:
    settings = SpeedupSettings(lanes=4, seconds=0.3, warm_s=0.0)
    one = speedup.configuration(settings, 32.0, "sequential", 0, "test")
    one.measure(settings.warm_s, settings.seconds, {})
    (window,) = one.windows
    assert 0.2 < window["learner_share"] < 1.0
    assert one.ratio() == pytest.approx(32, rel=0.1)


def test_a_real_run_with_free_roles_keeps_the_ratio_and_an_account() -> None:
    settings = SpeedupSettings(lanes=4, seconds=1.0, warm_s=0.2)
    one = speedup.configuration(settings, 8.0, "local", 1, "test")
    one.measure(settings.warm_s, settings.seconds, {})
    assert one.problem is None
    assert one.ratio() == pytest.approx(8, rel=0.3)  # a short window; the meter looks a few times a second
    account = one.account()
    assert account is not None
    assert {"verdict", "closed", "binding", "binding_useful"} <= set(account)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--shares", "1.5"], "--shares 1.5 must be"),
        (["--actors", "20"], "--actors 20 exceeds --lanes 16"),
        (["--rounds", "0"], "--rounds 0"),
        (["--plot", "nowhere/plot.svg"], "there is no folder"),
    ],
)
def test_settings_that_cannot_work_end_with_2(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # the command sets it: have it put back
    assert main(["bench", "speedup", *words]) == 2
    assert says in capsys.readouterr().err


def test_help_says_what_is_to_come(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "speedup", "--help"])
    assert "Several agents come with multi-agent worlds" in " ".join(capsys.readouterr().out.replace("│", " ").split())
