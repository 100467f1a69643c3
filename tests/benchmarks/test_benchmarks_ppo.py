"""`benchmarks ppo`: the plan, the cases, the refusals, and one small run of ours beside a loop of our own. Nothing here asserts a speed."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import installed, worlds
from benchmarks.__main__ import main
from benchmarks.compare_trainings import best_of
from benchmarks.peers import ppo_cleanrl_style as plain
from benchmarks.peers import ppo_settings as same
from benchmarks.peers.slow_env import EPISODE_STEPS, Slow, maker
from benchmarks.ppo import bench as ppo
from benchmarks.ppo import plan as ppo_plan
from benchmarks.ppo import training
from benchmarks.ppo.training import Watch, order_of
from benchmarks.settings import PpoSettings
from freewheel.algos.ppo import advantages
from freewheel.bench.trainings import Configuration, Pace
from freewheel.bench.worker.meter import Meter
from freewheel.config import assemble
from freewheel.errors import ConfigError, FreewheelError
from freewheel.run.callback import Moment

PYTHON = Path("python")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def everybody_found(asked: Any, packages: Any, own_loops: Any) -> dict[str, tuple[Path, str]]:
    return {**{peer: (PYTHON, module) for peer, module in packages.items()}, "cleanrl-style": (PYTHON, "own")}


@pytest.mark.parametrize("algo", ["ppo", "appo"])
@pytest.mark.parametrize("is_compiled", [False, True])
def test_ours_has_the_settings_of_the_peers(algo: str, is_compiled: bool) -> None:
    order = order_of(lanes=8, algo=algo, runtime="local", is_compiled=is_compiled, world="inline")
    config = assemble(same.ENV, {"algo": algo, **training.settings_of(order, "runs")}, preset="none")
    assert (config.rollout.rows, config.ppo.epochs, config.ppo.minibatches) == (128, 4, 4)
    assert (config.net.hidden, config.net.activation, config.net.shared) == ((64, 64), "tanh", False)
    assert (config.learner.lr, config.learner.clip_norm, config.learner.adam_eps) == (2.5e-4, 0.5, 1e-5)
    assert (config.world.lanes, config.world.kind, config.learner.threads) == (8, "inline", 1)
    assert (config.eval_episodes, config.learner.compile) == (0, "on" if is_compiled else "off")


def test_slow_envs_are_trained_by_the_preset_for_them() -> None:
    order = order_of(lanes=25, algo="appo", runtime="local", is_compiled=False, slow="busy")
    config = assemble("slow", {"algo": "appo", **training.slow_settings(order, "runs")}, preset="cyber")
    assert (config.rollout.rows, config.ppo.epochs) == (same.SLOW_ROLLOUT, same.EPOCHS)
    assert config.ppo.minibatches == same.MINIBATCHES
    assert (config.learner.lr, config.world.lanes, config.world.kind) == (same.SLOW_LR, 25, "auto")
    assert order["least_updates"] == same.UPDATES_PER_ROLLOUT


def test_the_meter_looks_after_whole_rollouts() -> None:
    clock = Clock()
    watch = Watch(Meter(warm_s=0.0, seconds=1.0, clock=clock, least_updates=16))
    looked = []
    watch.meter.is_over = lambda steps, updates: bool(looked.append(updates))  # type: ignore[func-returns-value, method-assign]
    for updates in (8, 16, 24, 31, 32, 48, 56):
        watch.on_update(Moment(step=1, updates=updates))
    assert looked == [16, 32, 48]


def test_the_window_opens_after_as_few_updates_as_are_asked_for() -> None:
    clock = Clock()
    meter = Meter(warm_s=0.0, seconds=1.0, clock=clock, least_updates=16)
    assert not meter.is_over(2_500, 16)
    clock.now = 3.0
    assert not meter.is_over(5_000, 32)
    assert meter.is_open


def test_the_sides_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ppo_plan, "side_pythons", everybody_found)
    tried = ppo_plan.plan(PpoSettings(cases=("ppo", "appo"), lanes=(8,), threads=(1,)))
    assert [(c.kind, c.side, c.name) for c in tried[:7]] == [
        ("ppo/CartPole-v1/8", "ours", "sequential, compiled, inline world"),
        ("ppo/CartPole-v1/8", "sb3", "1 thread"),
        ("ppo/CartPole-v1/8", "sbx", "1 thread"),
        ("ppo/CartPole-v1/8", "pufferlib", "1 thread"),
        ("ppo/CartPole-v1/8", "sample-factory", "1 thread"),
        ("ppo/CartPole-v1/8", "cleanrl-style", "1 thread"),
        ("appo/CartPole-v1/8", "ours", "local, compiled, inline world"),
    ]
    assert {c.name for c in tried if c.side == "sample-factory"} == {"1 thread", "1 thread, 2 workers"}
    assert {c.name for c in tried if c.kind.startswith("ppo") and c.side == "ours"} == {
        f"{runtime}, {form}, {world} world"
        for runtime in ("sequential", "local")
        for form in ("compiled", "eager")
        for world in ("inline", "vector")
    }
    assert {c.pace for c in tried} == {Pace(rows_per_update=256, steps_per_update=64, slack_steps=1024)}
    assert {c.pace.ratio for c in tried} == {same.EPOCHS}


def test_slow_envs_have_both_algorithms_and_a_peer_where_they_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ppo_plan, "side_pythons", everybody_found)
    tried = ppo_plan.plan(PpoSettings(cases=("slow",), slow_lanes=(25,)))
    assert [(c.kind, c.side, c.name) for c in tried] == [
        ("slow/busy/25", "ours", "ppo, local, auto world"),
        ("slow/busy/25", "ours", "appo, local, auto world"),
        ("slow/sleep/25", "ours", "ppo, local, auto world"),
        ("slow/sleep/25", "ours", "appo, local, auto world"),
        ("slow/sleep/25", "sb3-subproc", "25 processes"),
    ]
    assert {c.pace.steps_per_update for c in tried} == {25 * 100 / 16}


def test_appo_alone_brings_the_ppo_that_it_is_held_against(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ppo_plan, "side_pythons", everybody_found)
    tried = ppo_plan.plan(
        PpoSettings(cases=("appo",), lanes=(64,), forms=("eager",), runtimes=("sequential",), worlds=("vector",))
    )
    assert [(c.kind, c.name) for c in tried] == [
        ("ppo/CartPole-v1/64", "sequential, eager, vector world"),
        ("appo/CartPole-v1/64", "local, eager, vector world"),
    ]


def measured(kind: str, side: str, name: str, *speeds: float, lanes: int = 8, ratio: float = 4.0) -> Configuration:
    pace = ppo_plan.pace_of(lanes, same.ROLLOUT)
    told = {"updates_per_step": ratio / pace.rows_per_update, "startup_s": 1.0, "seconds": 20.0}
    windows = [{"steps_per_s": speed, **told} for speed in speeds]
    return Configuration(kind, side, name, PYTHON, "module", {}, windows, pace=pace)


def test_a_window_of_few_rollouts_may_be_off_by_one() -> None:
    long, short = (measured("a", "ours", "a", speed, ratio=4.8) for speed in (10_000.0, 256.0))
    assert not long.holds_ratio()  # 20 % more in 195 rollouts
    assert short.holds_ratio()  # in 5 of them it is one


def test_ppo_is_held_against_the_best_peer_and_appo_against_our_ppo() -> None:
    tried = [
        measured("ppo/CartPole-v1/8", "ours", "a", 30_000.0),
        measured("ppo/CartPole-v1/8", "ours", "b", 24_000.0),
        measured("ppo/CartPole-v1/8", "sb3", "c", 8_000.0),
        measured("ppo/CartPole-v1/8", "pufferlib", "d", 10_000.0),
        measured("ppo/CartPole-v1/8", "sbx", "e", 90_000.0, ratio=2.0),  # learns half as much
        measured("appo/CartPole-v1/8", "ours", "f", 33_000.0),
    ]
    first, second = (
        case.record() for case in ppo.make_cases(PpoSettings(cases=("ppo", "appo"), lanes=(8,)), tried, cores=2)
    )
    assert (first["case"], first["ratio"], first["goal"]) == ("ppo/CartPole-v1/8", 3.0, 3.0)
    assert first["peers"] == {"sb3": 8_000.0, "pufferlib": 10_000.0}
    assert first["best"]["ours"] == "a"
    assert "NOT the ratio of 4 that was asked for" in "".join(first["notes"])
    assert (second["case"], second["baseline"], second["ratio"]) == ("appo/CartPole-v1/8", "ppo", 1.1)
    assert second["goal"] == 1.0


def test_busy_envs_are_held_against_the_limit_and_sleeping_ones_against_processes() -> None:
    tried = [
        measured("slow/busy/25", "ours", "ppo", 700.0),
        measured("slow/busy/25", "ours", "appo", 750.0),
        measured("slow/sleep/25", "ours", "appo", 6_000.0),
        measured("slow/sleep/25", "sb3-subproc", "25 processes", 2_000.0),
    ]
    busy, sleep = (
        case.record() for case in ppo.make_cases(PpoSettings(cases=("slow",), slow_lanes=(25,)), tried, cores=2)
    )
    assert (busy["case"], busy["unit"], busy["baseline"], busy["goal"]) == ("slow/busy/25", "rows/s", "limit", 0.9)
    assert busy["ratio"] == busy["share_of_limit"] == pytest.approx(750 * 0.0024 / 2)
    assert (sleep["peers"], sleep["ratio"], sleep["goal"]) == ({"sb3-subproc": 2_000.0}, 3.0, 3.0)
    assert sleep["share_of_limit"] == pytest.approx(6_000 * 0.0024 / 25)


def test_nothing_of_ours_ends_in_an_error_that_says_why() -> None:
    tried = [measured("ppo/CartPole-v1/8", "ours", "a", 30_000.0, ratio=3.0)]
    assert best_of(tried, "ppo/CartPole-v1/8", "ours") is None
    with pytest.raises(FreewheelError, match=r"they ran at a ratio of 3\.0 \(a\)"):
        ppo.make_case("ppo", 8, tried)


def test_peers_with_older_packages_live_beside_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("peers", "peers-puffer"):
        python = tmp_path / name / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.touch()
    monkeypatch.setenv("FREEWHEEL_PEERS", str(tmp_path / "peers"))
    monkeypatch.setattr(installed, "installed_peers", lambda python, known: list(known))
    assert installed.find_python("puffer") == tmp_path / "peers-puffer" / "bin" / "python"
    assert installed.find_python("sf") is None
    found = installed.find_peers(None, ["sb3", "pufferlib", "sample-factory"])
    assert {peer: python.parts[-3] for peer, python in found.items()} == {"sb3": "peers", "pufferlib": "peers-puffer"}
    with pytest.raises(ConfigError, match="sample-factory: peers are not installed"):
        installed.find_peers(["sb3", "sample-factory"], ["sb3", "sample-factory"])
    found = worlds.find_peers(("pufferlib",))
    assert {way: python.parts[-3] for way, python in found.items()} == {"puffer": "peers-puffer"}


def test_what_is_missing_is_told_of(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "find_python", lambda venv="": None)
    assert installed.find_peers(None, ["sb3", "pufferlib"]) == {}
    said = capsys.readouterr().err
    assert "sb3: peers are not installed: run 'make peers'" in said
    assert "pufferlib: peers are not installed" in said


def test_a_busy_env_computes_and_a_sleeping_one_does_not() -> None:
    """Two busy ones on one core take twice as long: it is the thread's own time that they take."""
    for kind, least, most in (("busy", 0.018, 9.0), ("sleep", 0.0, 0.018)):
        env = maker(kind, 0.002)()
        env.reset(seed=1)
        before = time.thread_time()
        for _ in range(10):
            env.step(0)
        assert least <= time.thread_time() - before <= most


def test_the_slow_env_has_the_shapes_of_the_work() -> None:
    env = Slow("sleep", step_s=0.0)
    assert env.observation_space.shape == (77,)
    assert env.action_space.n == 145  # type: ignore[attr-defined]
    first, _ = env.reset(seed=3)
    assert np.array_equal(first, env.reset(seed=3)[0])
    _, reward, terminated, truncated, _ = env.step(int(first.argmax()))
    assert (reward, terminated, truncated) == (1.0, False, False)
    for _ in range(EPISODE_STEPS - 1):
        _, _, terminated, truncated, _ = env.step(144)
    assert (terminated, truncated) == (False, True)
    with pytest.raises(ValueError, match="no slow env 'idle'"):
        Slow("idle")


def test_the_plain_advantages_are_those_of_our_own() -> None:
    generator = torch.Generator().manual_seed(0)
    rollout = plain.Rollout(3, 4)
    rollout.reward, rollout.value = (torch.randn(same.ROLLOUT, 3, generator=generator) for _ in range(2))
    rollout.is_done = (torch.rand(same.ROLLOUT, 3, generator=generator) < 0.1).float()
    next_value, next_done = torch.randn(3, generator=generator), torch.tensor([0.0, 1.0, 0.0])
    got = plain.gae(rollout, next_value, next_done)
    ended = torch.cat([rollout.is_done[1:], next_done[None]]).T.bool().numpy()
    after = torch.cat([rollout.value[1:], next_value[None]]).T.numpy()
    wanted = advantages(
        rollout.reward.T.numpy(), rollout.value.T.numpy(), after, ended, ~ended, same.GAMMA, same.GAE_LAMBDA
    )
    np.testing.assert_allclose(got.T.numpy(), wanted, rtol=1e-4, atol=1e-5)


class Steps:
    """A meter that ends after so many steps."""

    def __init__(self, most: int) -> None:
        self.most = most

    def is_over(self, steps: int, updates: int) -> bool:
        assert updates * 8 * same.ROLLOUT == steps * same.UPDATES_PER_ROLLOUT
        return steps >= self.most


def test_the_plain_loop_learns_a_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "LR", 1e-3)  # sooner than at the rate that speed is measured with
    returns: list[float] = []
    plain.train(Steps(20_000), {"envs": 8}, returns.append)  # type: ignore[arg-type]
    assert np.mean(returns[:50]) < 40
    assert np.mean(returns[-20:]) > 80


def test_ours_and_a_loop_of_our_own_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    ppo.run(
        PpoSettings(
            against=("cleanrl-style",),
            cases=("ppo",),
            lanes=(4,),
            forms=("eager",),
            runtimes=("sequential",),
            worlds=("inline",),
            threads=(1,),
            rounds=1,
            seconds=0.3,
            warm_s=0.05,
            json=True,
        )
    )
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    (case,) = line["cases"]
    assert line["bench"] == "ppo"
    assert (case["case"], case["unit"]) == ("ppo/CartPole-v1/4", "steps/s")
    assert case["ours"] > 0
    assert case["peers"]["cleanrl-style"] > 0
    assert case["ratios"] == pytest.approx({"ours": 4.0, "cleanrl-style": 4.0}, rel=0.01)
    assert set(case["configurations"]["ours"]) == {"sequential, eager, inline world"}
    assert line["machine"]["versions"]["cleanrl-style"].startswith("torch")


@pytest.mark.slow
def test_slow_envs_and_appo_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    given: dict[str, Any] = {"against": ("none",), "rounds": 1, "seconds": 0.2, "warm_s": 0.0, "json": True}
    ppo.run(PpoSettings(cases=("slow",), slow=("sleep",), slow_lanes=(4,), **given))
    (case,) = json.loads(capsys.readouterr().out.splitlines()[-1])["cases"]
    assert (case["case"], case["unit"], case["peers"]) == ("slow/sleep/4", "rows/s", {})
    assert 0 < case["share_of_limit"] < 1.2
    assert case["baselines"] == {"limit": pytest.approx(4 / 0.0024, rel=1e-3)}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--against", "puffer"], "Did you mean 'pufferlib'"),
        (["--cases", "pbo"], "Did you mean 'ppo'"),
        (["--cases", "none"], "--cases none leaves nothing to measure"),
        (["--forms", "none"], "--forms none leaves nothing to compare"),
        (["--worlds", "pool"], "unknown world of ours 'pool'"),
        (["--runtimes", "ray"], "unknown runtime of ours 'ray'"),
        (["--slow", "lazy"], "unknown slow env 'lazy'"),
        (["--lanes", "0"], "--lanes 0 must be"),
        (["--slow-lanes", "-1"], "--slow-lanes -1 must be"),
        (["--seconds", "0"], "--seconds 0"),
        (["--warm-s", "-1"], "--warm-s -1"),
    ],
)
def test_settings_that_cannot_work_end_with_2(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # the command sets it: have it put back
    assert main(["ppo", *words]) == 2
    assert says in capsys.readouterr().err
