"""`benchmarks dqn`: the window, the configurations, the best of each side. Nothing here asserts a speed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import installed
from benchmarks.__main__ import main
from benchmarks.compare_trainings import best_of, finalists
from benchmarks.dqn import bench as dqn
from benchmarks.dqn import plan as dqn_plan
from benchmarks.dqn.bench import make_case
from benchmarks.dqn.plan import plan
from benchmarks.peers import iqn_plain
from benchmarks.peers.plain_loop import Batch, Ring
from benchmarks.settings import DqnSettings
from freewheel.bench import dqn_training
from freewheel.bench.dqn_training import Watch, order_of
from freewheel.bench.trainings import Configuration
from freewheel.bench.worker import dqn_settings as same
from freewheel.bench.worker.meter import LEAST_UPDATES, Meter
from freewheel.config import assemble
from freewheel.errors import ConfigError, FreewheelError
from freewheel.run.callback import Moment


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


@pytest.mark.parametrize("runtime", ["local", "sequential"])
@pytest.mark.parametrize("is_compiled", [False, True])
def test_ours_has_the_settings_of_the_peers(is_compiled: bool, runtime: str) -> None:
    order = order_of(lanes=8, runtime=runtime, is_compiled=is_compiled)
    config = assemble(same.ENV, dqn_training.settings_of(order, "runs"), preset="none")
    assert config.learner.ratio / config.learner.batch_size == 1 / same.STEPS_PER_UPDATE
    assert config.learner.target_every_updates * same.STEPS_PER_UPDATE == same.TARGET_EVERY_STEPS
    assert (config.q.double, config.q.n_step, config.replay.prioritized) == (False, 1, False)
    assert (config.explore.schedule, config.explore.end) == ("constant", same.EPSILON)
    assert (config.eval_episodes, config.learner.compile) == (0, "on" if is_compiled else "off")
    assert (config.runtime, config.algo) == (runtime, "dqn")


def test_orders_become_prioritized_or_iqn() -> None:
    order = order_of(lanes=8, runtime="local", is_compiled=True, is_prioritized=True, ratio=4.0, actors=2)
    config = assemble(same.ENV, dqn_training.settings_of(order, "runs"), preset="none")
    assert (config.replay.prioritized, config.q.n_step) == (True, 3)
    assert (config.learner.ratio, config.local.actors) == (4.0, 2)
    order = order_of(lanes=8, runtime="local", is_compiled=True, algo="iqn")
    config = assemble(same.ENV, {"algo": "iqn", **dqn_training.settings_of(order, "runs")}, preset="none")
    assert (config.q.num_taus, config.q.num_target_taus, config.q.num_act_taus) == (8, 8, 32)


@pytest.mark.parametrize(("runtime", "call"), [("sequential", "on_step"), ("local", "on_update")])
def test_the_meter_looks_where_both_counts_are_of_one_moment(runtime: str, call: str) -> None:
    clock = Clock()
    watch = Watch(Meter(warm_s=0.0, seconds=1.0, clock=clock), runtime)
    moment = Moment(step=100, updates=LEAST_UPDATES)
    other = "on_update" if call == "on_step" else "on_step"
    for clock.now in (0.0, 1.0, 2.0, 3.0):
        getattr(watch, other)(moment)
    assert not moment.is_stopping
    for clock.now in (0.0, 1.0, 2.0):
        getattr(watch, call)(moment)
    assert moment.is_stopping


def test_what_actor_and_learner_take_is_added_up_in_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(dqn_training.time, "perf_counter", clock)
    watch = Watch(Meter(warm_s=0.0, seconds=100.0, clock=clock), "sequential")
    moment = Moment(step=1, updates=LEAST_UPDATES)
    for clock.now in (0.0, 10.0):  # ready, then open: nothing counts yet
        watch.on_step(moment)
    for _ in range(3):
        clock.now += 3.0
        watch.on_update(moment)
        clock.now += 1.0
        watch.on_step(moment)
    assert (watch.actor_s, watch.learner_s) == (3.0, 9.0)
    assert watch.learner_share() == 0.75


def found(against: tuple[str, ...] | None) -> dict[str, tuple[Path, str]]:
    return {"sb3": (Path("python"), "benchmarks.peers.dqn_sb3")}


def test_the_loop_like_cleanrl_has_one_env(monkeypatch: pytest.MonkeyPatch) -> None:
    both = {"sb3": (Path("python"), "x"), "cleanrl-style": (Path("python"), "y")}
    monkeypatch.setattr(dqn_plan, "peer_pythons", lambda against: both)
    tried = plan(DqnSettings(lanes=(16,), envs=(1, 8), threads=(1,), cases=("dqn",)))
    envs = {side: {c.order["envs"] for c in tried if c.side == side} for side in both}
    assert envs == {"sb3": {1, 8}, "cleanrl-style": {1}}


def test_the_sides_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dqn_plan, "peer_pythons", found)
    tried = plan(DqnSettings(lanes=(16, 32), envs=(8,), threads=(1, 2)))
    assert [(c.kind, c.side, c.name) for c in tried[:8]] == [
        ("dqn", "ours", "local, compiled, 16 lanes"),
        ("dqn", "sb3", "8 envs, 1 thread"),
        ("per", "ours", "local, compiled, 16 lanes"),
        ("iqn", "ours", "local, compiled, 16 lanes"),
        ("iqn", "plain_iqn", "8 envs, 1 thread"),
        ("dqn", "ours", "local, compiled, 32 lanes"),
        ("dqn", "sb3", "8 envs, 2 threads"),
        ("per", "ours", "local, compiled, 32 lanes"),
    ]
    assert {(c.side, c.name) for c in tried[8:] if c.kind == "dqn"} == {
        ("ours", "local, eager, 16 lanes"),
        ("ours", "local, eager, 32 lanes"),
        ("sequential", "sequential, compiled, 32 lanes"),
    }
    assert tried[1].order == {"envs": 8, "threads": 1}
    assert tried[2].order["is_prioritized"]


def test_cases_and_forms_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dqn_plan, "peer_pythons", found)
    tried = plan(DqnSettings(cases=("per",), lanes=(8,), forms=("eager",), runtime="sequential"))
    assert [(c.kind, c.side, c.name) for c in tried] == [
        ("dqn", "ours", "sequential, eager, 8 lanes"),  # what per is held against
        ("per", "ours", "sequential, eager, 8 lanes"),
    ]


def measured(kind: str, side: str, name: str, *speeds: float, updates_per_step: float = 0.25) -> Configuration:
    windows = [{"steps_per_s": s, "updates_per_step": updates_per_step, "startup_s": 1.0} for s in speeds]
    return Configuration(kind, side, name, Path("python"), "module", {}, windows)


def test_the_best_of_each_side_and_training_go_on() -> None:
    tried = [
        measured("dqn", "ours", "a", 3.0),
        measured("dqn", "sb3", "b", 9.0),
        measured("dqn", "ours", "c", 1.0),
        measured("dqn", "ours", "d", 2.0),
        measured("per", "ours", "e", 0.5),
        measured("dqn", "sb3", "not measured"),
    ]
    failed = measured("dqn", "ours", "failed", 99.0)
    failed.problem = "it died"
    assert [c.name for c in finalists([*tried, failed], 2)] == ["a", "b", "d", "e"]


def test_the_best_of_each_side_are_compared() -> None:
    off = measured("dqn", "sbx", "1 env, 2 threads", 9500.0, 9000.0, 9600.0, updates_per_step=0.2)
    broken = measured("dqn", "sb3", "1 env, 1 thread")
    broken.problem = "it died"
    tried = [
        measured("dqn", "ours", "eager, 8 lanes", 3000.0, 3200.0, 3100.0),
        measured("dqn", "ours", "compiled, 8 lanes", 6000.0, 6600.0, 6300.0),
        measured("dqn", "ours", "compiled, 32 lanes", 9000.0),  # fast once, not repeated
        measured("dqn", "sequential", "compiled", 4000.0),
        measured("dqn", "sb3", "8 envs, 1 thread", 2000.0, 2100.0, 1900.0),
        measured("per", "ours", "compiled, 8 lanes", 7000.0),  # another training
        off,
        broken,
    ]
    tried[1].windows[-1]["account"] = {"verdict": "The learner binds.", "closed": 0.991}
    record = make_case("dqn", tried).record()
    assert record["case"] == "dqn/CartPole-v1/128"
    assert (record["ours"], record["peers"], record["ratio"]) == (6300.0, {"sb3": 2000.0}, 3.15)
    assert (record["goal"], record["baselines"]) == (6.0, {"sequential": 4000.0})
    assert record["best"]["ours"] == "compiled, 8 lanes"
    assert record["ratios"] == {"ours": 32.0, "sb3": 32.0, "sequential": 32.0}
    assert record["configurations"]["sbx"]["1 env, 2 threads"]["ratio"] == 25.6
    assert record["missing"] == {"dqn: sb3, 1 env, 1 thread": "it died"}
    assert record["account"] == {"verdict": "The learner binds.", "closed": 0.991}
    notes = record["notes"]
    assert "dqn: ours, compiled, 8 lanes: 6,300 steps/s, ratio 32.00; its best." in notes
    assert "dqn: sbx, 1 env, 2 threads: 9,500 steps/s, ratio 25.60; NOT the ratio of 32" in "".join(notes)
    assert notes[-1].endswith("account closed to 99.1 %. The learner binds.")


def test_per_is_held_against_our_own_uniform() -> None:
    tried = [measured("dqn", "ours", "a", 1000.0), measured("per", "ours", "a", 960.0)]
    record = make_case("per", tried).record()
    assert (record["case"], record["baseline"], record["ratio"]) == ("per/CartPole-v1/128", "uniform", 0.96)
    assert record["goal"] == 0.95


def test_iqn_is_held_against_the_plain_loop() -> None:
    tried = [measured("iqn", "ours", "a", 1000.0), measured("iqn", "plain_iqn", "1 env", 250.0)]
    record = make_case("iqn", tried).record()
    assert (record["peers"], record["ratio"], record["goal"]) == ({"plain_iqn": 250.0}, 4.0, 5.0)


def test_a_figure_at_another_ratio_does_not_count() -> None:
    tried = [measured("dqn", "ours", "a", 1000.0, updates_per_step=0.236)]
    assert best_of(tried, "dqn", "ours") is None
    with pytest.raises(FreewheelError, match=r"they ran at a ratio of 30\.2 \(a\)"):
        make_case("dqn", tried)
    tried[0].windows[0]["updates_per_step"] = 0.24  # within 5 in 100
    assert best_of(tried, "dqn", "ours") is tried[0]


def test_ours_and_a_loop_of_our_own_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    settings = DqnSettings(
        against=("cleanrl-style",),
        cases=("dqn",),
        runtime="sequential",
        lanes=(8,),
        forms=("eager",),
        envs=(8,),
        threads=(1,),
        rounds=1,
        seconds=0.3,
        warm_s=0.05,
        json=True,
    )
    dqn.run(settings)
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    (case,) = line["cases"]
    assert case["ours"] > 0
    assert case["peers"]["cleanrl-style"] > 0
    assert case["ratios"]["ours"] == pytest.approx(32, rel=0.05)
    assert case["ratios"]["cleanrl-style"] == pytest.approx(32, rel=0.05)
    assert case["configurations"]["ours"]["sequential, eager, 8 lanes"]["windows"] == 1
    assert "goal" not in case  # it is for free-running roles


def test_a_side_that_does_not_start_is_told_of(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dqn_plan, "MODULE", "freewheel.bench.nobody")
    settings = DqnSettings(
        against=("none",), cases=("dqn",), lanes=(8,), forms=("eager",), runtime="sequential", rounds=2, seconds=0.1
    )
    with pytest.raises(FreewheelError, match="none of our trainings gave a figure"):
        dqn.run(settings)
    said = capsys.readouterr().err
    label = "dqn: ours, sequential, eager, 8 lanes"
    assert said.count(f"{label} is left out") == 1  # and not tried in the second round
    assert "No module named 'freewheel.bench.nobody'" in said


def test_without_peers_only_loops_of_our_own_run_unless_one_was_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installed, "find_python", lambda: None)
    assert list(dqn_plan.peer_pythons(None)) == ["cleanrl-style"]
    assert "run 'make peers'" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="sbx: peers are not installed"):
        dqn_plan.peer_pythons(("sbx", "cleanrl-style"))
    assert dqn_plan.peer_pythons(("none",)) == {}


def test_peers_run_in_their_own_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "find_python", lambda: Path("theirs"))
    monkeypatch.setattr(installed, "installed_peers", lambda python, known: ["sb3"])
    assert dqn_plan.peer_pythons(None) == {
        "sb3": (Path("theirs"), "benchmarks.peers.dqn_sb3"),
        "cleanrl-style": (installed.HERE, "benchmarks.peers.dqn_cleanrl_style"),
    }
    with pytest.raises(ConfigError, match="sbx: not in"):
        dqn_plan.peer_pythons(("sbx",))


def test_the_plain_ring_keeps_the_newest_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.peers.plain_loop.BUFFER", 10)
    ring = Ring(2, np.random.default_rng(0))
    for i in range(4):
        at = np.arange(4 * i, 4 * i + 4, dtype=np.float32)
        rows = np.stack([at, at], 1)
        ring.add(rows, at.astype(np.int64), at, rows + 1, at * 0)
    assert (ring.size, ring.head) == (10, 6)
    batch = ring.sample()
    assert set(batch.reward.int().tolist()) <= set(range(6, 16))
    assert torch.equal(batch.next_obs, batch.obs + 1)
    assert torch.equal(batch.action.float(), batch.reward)


def test_the_plain_iqn_loss_is_the_one_of_our_own() -> None:
    """Both at the same fractions: what the baseline computes is what ours does."""
    from freewheel.algos.value_based import quantile_huber

    torch.manual_seed(1)
    net, target = iqn_plain.Net(), iqn_plain.Net()
    batch = Batch(torch.randn(6, 4), torch.randint(2, (6,)), torch.randn(6), torch.randn(6, 4), torch.zeros(6))
    torch.manual_seed(2)
    got = iqn_plain.loss_of(net, target, batch)
    torch.manual_seed(2)
    best = target(batch.next_obs, torch.rand(6, same.ACT_TAUS)).mean(1).argmax(1)
    later = target(batch.next_obs, torch.rand(6, same.TARGET_TAUS))[torch.arange(6), :, best]
    taus = torch.rand(6, same.TAUS)
    online = net(batch.obs, taus)[torch.arange(6), :, batch.action]
    goal = batch.reward[:, None] + same.GAMMA * later
    assert got.item() == pytest.approx(quantile_huber(online, goal, taus, same.HUBER).mean().item(), rel=1e-5)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--against", "cleanrl"], "Did you mean 'cleanrl-style'"),
        (["--cases", "dqm"], "Did you mean 'dqn'"),
        (["--envs", "3"], "--envs 3 cannot make one update per 4 steps"),
        (["--lanes", "0"], "--lanes 0 must be"),
        (["--forms", "sequential"], "--forms sequential leaves nothing to compare"),
        (["--seconds", "0"], "--seconds 0"),
        (["--warm-s", "-1"], "--warm-s -1"),
    ],
)
def test_settings_that_cannot_work_end_with_2(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # the command sets it: have it put back
    assert main(["dqn", *words]) == 2
    assert says in capsys.readouterr().err
