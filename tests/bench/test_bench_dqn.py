"""`bench dqn`: the window, the configurations, the best of each side. Nothing here asserts a speed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from freewheel.bench import dqn, dqn_ours
from freewheel.bench.dqn import Configuration, finalists, make_case, plan
from freewheel.bench.peers import dqn_settings as same
from freewheel.bench.peers.meter import LEAST_UPDATES, Meter
from freewheel.bench.settings import DqnSettings
from freewheel.cli.main import main
from freewheel.config import assemble
from freewheel.errors import ConfigError, FreewheelError


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_window_opens_when_training_is_under_way() -> None:
    clock = Clock()
    meter = Meter(warm_s=2.0, seconds=10.0, clock=clock)
    clock.now = 50.0  # compiling
    assert not meter.is_over(1_000, LEAST_UPDATES - 1)
    clock.now = 60.0
    assert not meter.is_over(1_256, LEAST_UPDATES)
    clock.now = 61.0
    assert not meter.is_over(1_300, 75)
    clock.now = 62.0
    assert not meter.is_over(2_000, 250)  # it opens here
    clock.now = 71.0
    assert not meter.is_over(2_900, 475)
    clock.now = 72.5
    assert meter.is_over(3_050, 512)
    clock.now = 99.0
    assert meter.is_over(9_999, 9_999)  # what comes after the window does not count
    figures = meter.figures()
    assert figures["seconds"] == 10.5
    assert figures["steps_per_s"] == pytest.approx(100.0)
    assert figures["updates_per_step"] == pytest.approx(262 / 1_050)
    assert figures["startup_s"] == 60.0


def test_a_training_that_ends_too_soon_gives_no_figure() -> None:
    meter = Meter(0.0, 1.0, Clock())
    meter.is_over(1_000, LEAST_UPDATES)
    with pytest.raises(RuntimeError, match="ended before the window did"):
        meter.figures()


@pytest.mark.parametrize("envs", [1, 2, 4, 8, 32])
def test_a_peer_trains_at_the_ratio_with_any_number_of_envs(envs: int) -> None:
    turns, updates = same.turns(envs)
    assert turns * envs == updates * same.STEPS_PER_UPDATE


@pytest.mark.parametrize("is_compiled", [False, True])
def test_ours_has_the_settings_of_the_peer(is_compiled: bool) -> None:
    order = {"envs": 8, "threads": 1, "is_compiled": is_compiled}
    config = assemble(same.ENV, dqn_ours.settings_of(order, "runs"), preset="none")
    assert config.learner.ratio / config.learner.batch_size == 1 / same.STEPS_PER_UPDATE
    assert config.learner.target_every_updates * same.STEPS_PER_UPDATE == same.TARGET_EVERY_STEPS
    assert (config.q.double, config.q.n_step, config.replay.prioritized) == (False, 1, False)
    assert (config.explore.schedule, config.explore.end) == ("constant", same.EPSILON)
    assert (config.eval_episodes, config.learner.compile) == (0, is_compiled)


def test_the_sides_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dqn, "peer_python", lambda against: Path("python"))
    tried = plan(DqnSettings(lanes=(1, 8), forms=("eager", "compiled"), envs=(8,), threads=(1, 2)))
    assert [(c.side, c.name) for c in tried] == [
        ("ours", "eager, 1 lane"),
        ("sb3", "8 envs, 1 thread"),
        ("ours", "compiled, 1 lane"),
        ("sb3", "8 envs, 2 threads"),
        ("ours", "eager, 8 lanes"),
        ("ours", "compiled, 8 lanes"),
    ]
    assert tried[2].order == {"envs": 1, "threads": 1, "is_compiled": True}
    assert tried[3].order == {"envs": 8, "threads": 2}


def measured(side: str, name: str, *speeds: float, updates_per_step: float = 0.25) -> Configuration:
    windows = [{"steps_per_s": s, "updates_per_step": updates_per_step, "startup_s": 1.0} for s in speeds]
    return Configuration(side, name, Path("python"), {}, windows)


def test_the_two_best_of_each_side_go_on() -> None:
    tried = [
        measured("ours", "a", 3.0),
        measured("sb3", "b", 9.0),
        measured("ours", "c", 1.0),
        measured("ours", "d", 2.0),
    ]
    assert [c.name for c in finalists([*tried, measured("sb3", "failed")])] == ["a", "b", "d"]


def test_the_best_of_each_side_are_compared() -> None:
    tried = [
        measured("ours", "eager, 8 lanes", 3000.0, 3200.0, 3100.0),
        measured("ours", "compiled, 8 lanes", 6000.0, 6600.0, 6300.0),
        measured("ours", "compiled, 32 lanes", 9000.0),  # fast once, not repeated
        measured("sb3", "8 envs, 1 thread", 2000.0, 2100.0, 1900.0),
        measured("sb3", "1 env, 2 threads", 1500.0, 9000.0, 1600.0, updates_per_step=0.2),
    ]
    case = make_case(tried, {"1 env, 1 thread": "it died"})
    record = case.record()
    assert record["case"] == "dqn/cartpole/128"
    assert (record["ours"], record["peers"], record["ratio"]) == (6300.0, {"sb3": 2000.0}, 3.15)
    assert record["goal"] == 2.0
    assert record["best"] == {"ours": "compiled, 8 lanes", "sb3": "8 envs, 1 thread"}
    assert record["updates_per_step"] == {"ours": 0.25, "sb3": 0.25}
    assert record["configurations"]["sb3"]["1 env, 2 threads"]["updates_per_step"] == 0.2
    assert record["missing"] == {"1 env, 1 thread": "it died"}
    notes = record["notes"]
    assert "ours, compiled, 8 lanes: 6,300 steps/s, 0.2500 updates per step; its best." in notes
    assert "NOT the ratio of 0.25" in notes[-1]
    assert "NOT" not in "".join(notes[:-1])


def test_ours_is_measured_through_the_public_path(capsys: pytest.CaptureFixture[str]) -> None:
    settings = DqnSettings(
        against=("none",), lanes=(8,), forms=("eager",), rounds=2, seconds=0.3, warm_s=0.05, json=True
    )
    dqn.run(settings)
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    (case,) = line["cases"]
    assert case["ours"] > 0
    assert case["peers"] == {}
    assert case["updates_per_step"]["ours"] == pytest.approx(0.25, rel=0.1)
    assert case["configurations"]["ours"]["eager, 8 lanes"]["windows"] == 2


def test_a_side_that_does_not_start_is_told_of(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(dqn.MODULES, "ours", "peers.nobody")
    settings = DqnSettings(against=("none",), lanes=(8,), forms=("eager",), rounds=2, seconds=0.1)
    with pytest.raises(FreewheelError, match="none of our trainings gave a figure"):
        dqn.run(settings)
    said = capsys.readouterr().err
    assert said.count("ours (eager, 8 lanes) is left out") == 1  # and not tried in the second round
    assert "No module named 'peers.nobody'" in said


def test_without_peers_ours_runs_alone_unless_one_was_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dqn.installed, "find_python", lambda: None)
    assert dqn.peer_python(None) is None
    assert "run 'make peers'" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="sb3: peers are not installed"):
        dqn.peer_python(("sb3",))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--against", "sb2"], "Did you mean 'sb3'"),
        (["--envs", "3"], "--envs 3 cannot make one update per 4 steps"),
        (["--lanes", "0"], "--lanes 0 must be"),
        (["--forms", "none"], "--forms none leaves nothing"),
        (["--seconds", "0"], "--seconds 0"),
        (["--warm-s", "-1"], "--warm-s -1"),
    ],
)
def test_settings_that_cannot_work_end_with_2(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # the command sets it: have it put back
    assert main(["bench", "dqn", *words]) == 2
    assert says in capsys.readouterr().err
