"""The local runtime's corners: what it refuses, what it tells, and how roles are watched."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
from run_cases import planned, settings_of

import freewheel
from freewheel.config.kept_settings import LogConfig
from freewheel.errors import CheckpointError, ConfigError
from freewheel.machine import pinning
from freewheel.machine.precision import why_not
from freewheel.machine.trial import Choice
from freewheel.machine.update_form import Form
from freewheel.report.progress import Progress
from freewheel.report.sink import Sink
from freewheel.run import runtime as runtimes
from freewheel.run.callback import Moment
from freewheel.run.local import Local
from freewheel.run.reporter import Reporter
from freewheel.store.load import load_run


def train(tmp_path: Path, env: Any = "CartPole-v1", **settings: Any) -> freewheel.Run:
    steps = settings.pop("steps", 60)
    given = settings_of("dqn", tmp_path, **{"runtime": "local", "learner.workers": 1, **settings})
    return freewheel.train(env, steps=steps, preset="none", settings=given)


def plan(**settings: Any) -> Any:
    return planned(**{"learner.compile": "auto", **settings})


@pytest.mark.parametrize(
    ("heard", "adopt"),
    [({"package": ["/one.pt2", "/two.pt2"]}, ["/one.pt2", "/two.pt2"]), ({"compiler_ended": 3, "why": "no g++"}, None)],
)
def test_a_learner_that_is_started_anew_is_told_what_came_of_compiling(
    heard: dict[str, Any], adopt: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Sink([]) as sink, Progress(10, is_quiet=True) as progress:
        local = Local(plan())
        local.attach(Reporter(sink, progress, [], Moment(), LogConfig()))
        told: list[Any] = []
        ahead: list[str] = []
        learner, compiler = local._supervisor.learners[0], local._supervisor.compilers[0]
        monkeypatch.setattr(local._supervisor, "tell", lambda role, message: told.append((role, message)))
        monkeypatch.setattr(local._supervisor, "start_targets", lambda policy, package: ahead.append(package))
        local._receive(learner, {"stack": 5})
        assert told == []
        local._receive(compiler, heard)
        local._receive(local._supervisor.actors[0], {"stack": 5})
        local._receive(learner, {"stack": 5})
        assert told == [(learner, {"adopt": adopt})] * 2
        assert ahead == (["/two.pt2"] if adopt else [])
        local._supervisor.close()


@pytest.mark.parametrize("threads", [1, 2])
def test_a_target_process_needs_a_core_that_the_learner_leaves(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtimes, "num_cores", lambda: 2)
    before = torch.get_num_threads()
    try:
        assert (plan(**{"learner.threads": threads}).policies[0].targets is None) == (threads == 2)
    finally:
        torch.set_num_threads(before)


def test_a_run_that_ends_before_its_update_is_compiled_does_not_wait_for_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = train(tmp_path, **{"learner.compile": "on"})
    assert 60 <= run.result["steps"] < 70
    assert "Compiled updates" not in capfd.readouterr().err


def fixed() -> gymnasium.vector.VectorEnv[Any, Any, Any]:
    """A vector env that is made for four lanes and no other number."""
    return gymnasium.make_vec("CartPole-v1", 4, gymnasium.VectorizeMode.VECTOR_ENTRY_POINT)


def test_a_vector_env_of_a_fixed_number_is_taken_as_it_is(tmp_path: Path) -> None:
    run = train(tmp_path, fixed, steps=200, **{"world.kind": "vector", "local.actors": 1, "learner.compile": "off"})
    assert run.result["runtime"] == "local"
    assert run.result["updates"] > 0


def test_a_slack_has_no_effect_on_free_actors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"local\.slack_steps.*no effect"):
        train(tmp_path, **{"local.free": True, "local.slack_steps": 50})


def test_a_target_process_of_eager_updates_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"local\.target_process.*no effect: it needs compiled updates"):
        train(tmp_path, **{"learner.compile": "off", "local.target_process": False})


@pytest.mark.parametrize("runtime", ["sequential", "local"])
def test_a_precision_that_was_asked_for_is_told_of(
    runtime: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("freewheel.machine.precision.choose", lambda asked, device: Choice("fp32", "bf16 dies."))
    given = settings_of("dqn", tmp_path, **{"runtime": runtime, "learner.precision": "bf16"})
    freewheel.train("CartPole-v1", steps=40, preset="none", settings=given)
    assert "bf16 dies." in capsys.readouterr().err


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="takes two cores")
def test_with_pin_on_the_learner_and_the_others_keep_to_cores_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound: dict[int, set[int]] = {}
    monkeypatch.setattr(pinning, "_bind", bound.__setitem__)
    train(tmp_path, steps=1_500, **{"local.pin": "on"})  # long enough to be looked at while the actor lives
    masks = {frozenset(cores) for cores in bound.values()}
    assert len(bound) >= 2
    assert len(masks) == 2
    assert min(len(mask) for mask in masks) == 1
    assert sorted(core for mask in masks for core in mask) == sorted(os.sched_getaffinity(0))


def test_more_workers_on_another_device_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtimes, "pick_device", lambda asked, setting="": torch.device("mps"))
    monkeypatch.setattr(runtimes.update_trial, "choose", lambda *_: Choice(Form()))
    with pytest.raises(ConfigError, match=r"learner\.workers=2 needs the CPU or CUDA devices, but learner\.device=mps"):
        plan(**{"learner.workers": 2})


@pytest.mark.parametrize("precision", ["int8", "bf16"])
def test_actors_of_fewer_bits_say_what_they_give(
    precision: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if precision == "bf16" and (why := why_not("bf16", "cpu")):
        pytest.skip(why)
    given = {"local.act_precision": precision, "world.stack": 2, "learner.compile": "off", "learner.ratio": 1.0}
    run = train(tmp_path, "freewheel/Catch-v0", steps=3_000, **given)
    assert run.result["updates"] > 0
    assert len(run.episodes) > 0
    said = capsys.readouterr().err
    assert re.search(rf"local\.act_precision={precision}: [\d.]+ times as fast as fp32\.", said)
    # With trained weights, on what the envs show: hardly with those of the beginning.
    found = re.search(r"the same action as in fp32 in ([\d.]+) % of (\d+) observations at step ([\d,]+)", said)
    assert found is not None, said
    assert float(found[1]) > 50
    assert int(found[2]) >= 1
    assert int(found[3].replace(",", "")) >= 300


def test_acting_in_bf16_is_refused_where_it_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("freewheel.machine.precision.why_not", lambda name, device: "its process died by SIGILL")
    with pytest.raises(
        ConfigError, match=r"act_precision=bf16 does not run on this machine \(its process died by SIGILL"
    ):
        plan(**{"local.act_precision": "bf16"})


def test_numbers_of_a_pool_are_refused_where_auto_takes_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"world\.min_ready was given, but has no effect: the world is not a pool"):
        train(tmp_path, **{"world.min_ready": 2})


def test_a_second_ctrl_c_during_a_callback_is_not_kept_for_the_end() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    local = object.__new__(Local)
    local._error = None
    with pytest.raises(KeyboardInterrupt):
        local._guarded(interrupted)


def test_a_network_that_does_not_fit_is_refused_before_its_learner_would_begin_anew(tmp_path: Path) -> None:
    run = freewheel.train(
        "CartPole-v1", steps=60, preset="none", settings=settings_of("dqn", tmp_path, runtime="sequential")
    )
    checkpoint = load_run(run.folder / "checkpoints")
    Local(plan()).resume(checkpoint)
    with pytest.raises(CheckpointError, match="It was saved with other settings or another env"):
        Local(plan(**{"net.hidden": (17,)})).resume(checkpoint)
