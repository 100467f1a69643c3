"""The installed benches with peers in their rounds, as small as they go. Nothing here asserts a speed."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import pytest

from benchmarks import replay, weights, worlds
from benchmarks.__main__ import MODULES, SETTINGS, main
from benchmarks.replay import GOALS
from benchmarks.settings import ReplaySettings, WeightsSettings, WorldsSettings
from benchmarks.worlds import with_peers
from freewheel.bench.buffer_processes import NUMPY, BufferProgram
from freewheel.bench.replay_plan import plan
from freewheel.bench.worlds import Plan, plans_of
from freewheel.errors import ConfigError

TINY: dict[str, Any] = {"rounds": 1, "seconds": 0.002, "json": True}


def last_line(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    line: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return line


def test_every_goal_of_replay_is_a_case_of_the_default_run() -> None:
    stages = plan(ReplaySettings())
    names = {stage.case(batch).name for stage in stages for batch in stage.batches}
    assert set(GOALS) <= names | {"bytes/u8[4,84,84]", "per_cost/f32[171]/256"}


def test_buffers_of_peers_are_measured_in_the_rounds_of_ours(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "programs", lambda settings: {"sb3": BufferProgram(NUMPY.program)})
    settings = ReplaySettings(obs=("f32[8]", "u8[4,12,12]"), batches=(256,), capacity=2048, **TINY)
    replay.run(settings)
    line = last_line(capsys)
    cases = {case["case"]: case for case in line["cases"]}
    assert line["bench"] == "replay"
    assert line["machine"]["versions"]["sb3"]
    uniform = cases["uniform/f32[8]/256"]
    assert (set(uniform["peers"]), set(uniform["baselines"]), uniform["goal"]) == ({"sb3"}, {"numpy"}, 3.0)
    assert uniform["ratio"] > 0
    assert cases["prioritized/f32[8]/256"]["peers"] == {}
    assert cases["bytes/u8[4,12,12]"]["peers"]["sb3"] >= 0
    assert list(cases["bytes/u8[4,12,12]"]["baselines"]) == ["sb3 optimize_memory_usage"]


def test_weights_run_through_a_queue(capsys: pytest.CaptureFixture[str]) -> None:
    weights.run(WeightsSettings(against=("mp_queue",), sizes=("1.7M",), rounds=1, seconds=0.002, json=True))
    first, second = last_line(capsys)["cases"]
    assert first["peers"]["mp_queue"] > 0
    assert (second["case"], second["baseline"]) == ("vs_queue/1.7M", "mp_queue")


def run(capsys: pytest.CaptureFixture[str], **given: Any) -> dict[str, Any]:
    worlds.run(WorldsSettings(**{**TINY, "seconds": 0.02, **given}))
    return last_line(capsys)


def test_peers_run_beside_ours(capsys: pytest.CaptureFixture[str]) -> None:
    line = run(capsys, against=("gymnasium",), envs=("cartpole",), lanes=(2,))
    peers = {case["case"]: set(case["peers"]) for case in line["cases"]}
    assert peers == {
        "inline/cartpole/2": {"gym-sync"},
        "pool/cartpole/2": {"gym-async"},
        "vector/cartpole/2": {"gym-vector"},
        "auto/cartpole/2": {"gym-sync", "gym-async"},
    }
    assert all(case["ratio"] > 0 for case in line["cases"])
    assert line["machine"]["versions"]["gym-sync"]


def test_who_is_compared_with_whom() -> None:
    peers = ["gym-sync", "gym-async", "gym-vector", "sb3-dummy", "sb3-subproc", "envpool"]
    pool, auto = (with_peers(plan, peers) for plan in plans_of("sleep", 128))
    assert (pool.peers, pool.beside, pool.goal) == (("gym-async",), ("sb3-subproc",), 2.0)
    assert auto == Plan("auto", "sleep", 128, ("gym-async", "sb3-subproc"), goal=1.0)
    assert [with_peers(plan, peers).goal for plan in plans_of("cartpole", 128)] == [1.3, 4.0, 0.95, 1.0]


@pytest.mark.parametrize("given", [{"against": ("gym",)}, {"envs": ("cartpol",)}])
def test_worlds_refuses_unknown_names(capsys: pytest.CaptureFixture[str], given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        run(capsys, **given)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["replay", "--against", "cprb"], "Did you mean 'cpprb'"),
        (["weights", "--against", "queue"], "Did you mean 'mp_queue'"),
        (["update", "--against", "jax_jitt"], "Did you mean 'jax_jit'"),
    ],
)
def test_unknown_peers_end_with_2(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # the command sets it: have it put back
    assert main(words) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("name", SETTINGS)
def test_every_benchmark_has_help_and_a_module(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([name, "--help"])
    assert left.value.code == 0
    assert "--json" in capsys.readouterr().out
    assert importlib.util.find_spec(MODULES[name]) is not None
