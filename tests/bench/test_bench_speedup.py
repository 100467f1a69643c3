"""`bench speedup`: ratios from shares, the prediction, and what is told. Nothing here asserts a speed."""

from __future__ import annotations

import json
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from freewheel.bench import speedup
from freewheel.bench.settings import SpeedupSettings
from freewheel.bench.several_agents import SeveralAgents
from freewheel.bench.speedup import Layout, Point, make_case, plan, predicted, ratio_for
from freewheel.bench.trainings import Configuration
from freewheel.bench.worker.meter import Meter, Together
from freewheel.cli.main import main
from freewheel.errors import FreewheelError


@pytest.mark.parametrize("share", [0.1, 0.5, 0.7])
def test_the_ratio_gives_the_share(share: float) -> None:
    step_s, update_s = 40e-6, 1.2e-3
    updates_per_step = ratio_for(share, update_s / step_s) / 128
    learner_s = updates_per_step * update_s
    assert learner_s / (learner_s + step_s) == pytest.approx(share)


@pytest.mark.parametrize(
    ("share", "layout", "cores", "expected"),
    [
        (0.5, Layout(1, 1), 2, 2.0),
        (0.1, Layout(1, 1), 2, 1 / 0.9),
        (0.7, Layout(1, 1), 2, 1 / 0.7),
        (0.1, Layout(1, 2), 2, 2.0),  # 1 / 0.45 would be more than two cores can give
        (0.1, Layout(1, 2), 8, 1 / 0.45),
        (0.7, Layout(1, 2), 8, 1 / 0.7),
        (0.7, Layout(2, 1), 2, 2.0),
        (0.7, Layout(3, 1), 8, 3 / 0.7),
        (0.7, Layout(10, 1), 8, 8.0),
    ],
)
def test_amdahl(share: float, layout: Layout, cores: int, expected: float) -> None:
    assert predicted(share, layout, cores) == pytest.approx(expected)


def test_each_share_has_a_sequential_run_and_one_per_number_of_actors_and_of_agents() -> None:
    points = plan(SpeedupSettings(shares=(0.2, 0.5), actors=(1, 2), agents=(1, 3), lanes=8), 30.0)
    assert [point.share for point in points] == [0.2, 0.5]
    orders = [points[1].sequential.order, *(one.order for one in points[1].local.values())]
    roles = [(order["runtime"], order["actors"]) for order in orders]
    assert roles == [("sequential", 0), ("local", 1), ("local", 2), ("local", 1)]
    assert [getattr(one, "agents", 1) for one in points[1].local.values()] == [1, 1, 3]
    assert {order["ratio"] for order in orders} == {ratio_for(0.5, 30.0)}


def configuration(side: str, *windows: dict[str, Any]) -> Configuration:
    return Configuration("dqn", side, "a", Path("python"), "module", {}, list(windows))


def test_the_case_has_measured_beside_predicted() -> None:
    in_turn = configuration("sequential", {"steps_per_s": 1000.0, "updates_per_step": 0.03125, "learner_share": 0.4})
    free = configuration("ours", {"steps_per_s": 1500.0, "updates_per_step": 0.02, "account": {"closed": 0.99}})
    record = make_case(Point(0.5, 4.0, in_turn, {Layout(1, 1): free}), Layout(1, 1), cores=2).record()
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
    monkeypatch.setattr(SeveralAgents, "measure", measure)
    path = tmp_path / "speedup.svg"
    speedup.run(SpeedupSettings(shares=(0.3, 0.5), actors=(1, 2), agents=(10,), rounds=2, plot=path, json=True))
    out = capsys.readouterr().out
    line = json.loads(out.splitlines()[-1])
    assert line["bench"] == "speedup"
    assert [case["case"] for case in line["cases"]] == [
        "speedup/30%/1_actor",
        "speedup/30%/2_actors",
        "speedup/30%/10_agents",
        "speedup/50%/1_actor",
        "speedup/50%/2_actors",
        "speedup/50%/10_agents",
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
    monkeypatch.setattr(SeveralAgents, "measure", measure)
    with pytest.raises(FreewheelError, match="no share of training gave all of its figures"):
        speedup.run(SpeedupSettings(rounds=1, plot=tmp_path / "plot.svg"))


def test_a_real_sequential_run_tells_its_share() -> None:
    settings = SpeedupSettings(lanes=4, seconds=0.3, warm_s=0.0)
    one = speedup.configuration(settings, 32.0, "test")
    one.measure(settings.warm_s, settings.seconds, {})
    (window,) = one.windows
    assert 0.2 < window["learner_share"] < 1.0
    assert one.ratio() == pytest.approx(32, rel=0.1)


def test_agents_are_measured_over_the_same_seconds(tmp_path: Path) -> None:
    times = [0.0]
    meters = [
        Meter(1.0, 5.0, lambda: times[0], least_updates=1, may_open=Together(str(tmp_path), str(number), 2))
        for number in range(2)
    ]
    for now, early, late in [(0, 1, 0), (2, 3, 1), (4, 5, 2), (5, 8, 4), (9, 16, 8), (10, 18, 9)]:
        times[0] = float(now)
        for meter, steps in zip(meters, (early, late), strict=True):
            meter.is_over(10 * steps, steps)
    # The first was warm at 2 s; the second at 4 s, and at the next look of the first both are open.
    assert [meter.figures()["steps_per_s"] for meter in meters] == [20.0, 12.0]


def test_two_agents_of_real_runs_add_up_and_keep_the_ratio_and_an_account() -> None:
    settings = SpeedupSettings(lanes=4, seconds=1.0, warm_s=0.1)
    agents = speedup.configuration(settings, 8.0, "test", Layout(2, 1))
    agents.measure(settings.warm_s, settings.seconds, {})
    assert agents.problem is None
    (window,) = agents.windows
    assert window["steps_per_s"] > 0
    assert window["updates_per_s"] == pytest.approx(window["updates_per_step"] * window["steps_per_s"])
    assert agents.ratio() == pytest.approx(8, rel=0.3)  # a short window; the meter looks a few times a second
    account = agents.account()
    assert account is not None
    assert {"verdict", "closed", "binding", "binding_useful"} <= set(account)


def test_an_agent_that_fails_holds_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def measure(self: Configuration, warm_s: float, seconds: float, versions: dict[str, str]) -> None:
        together = self.order["together"]
        if together["name"] == "0":
            self.problem = "it died"
            return
        gate = Together(**together)
        while not gate():
            time.sleep(0.001)
        seen.append(together["count"])
        self.windows.append({"steps_per_s": 1.0})

    monkeypatch.setattr(Configuration, "measure", measure)
    agents = SeveralAgents("dqn", "ours", "a", Path("python"), "module", {}, agents=3)
    agents.measure(0.0, 0.1, {})
    assert (seen, agents.problem, agents.windows) == ([3, 3], "it died", [])


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
