"""More than one training worker in a run: asked for, or measured."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import freewheel
from freewheel.config import assemble
from freewheel.errors import ConfigError
from freewheel.learners.workers import help_train
from freewheel.run import helping, local
from freewheel.run.channel import Channel, pair
from freewheel.run.checkpoint import load_newest
from freewheel.run.layout import choose
from freewheel.run.learning import build_learner

TINY: dict[str, Any] = {
    "runtime": "local",
    "world.lanes": 4,
    "net.hidden": (16,),
    "replay.rows": 2000,
    "replay.warmup_rows": 100,
    "learner.batch_size": 15,  # no equal shares
    "learner.ratio": 7.5,
    "eval_episodes": 0,
    "log.tensorboard": False,
}


def train(tmp_path: Path, **settings: Any) -> freewheel.Run:
    given = {**TINY, "log.folder": str(tmp_path), **settings}
    return freewheel.train("CartPole-v1", steps=800, preset="none", settings=given)


def test_workers_share_the_updates_of_a_run(tmp_path: Path) -> None:
    run = train(tmp_path, **{"learner.workers": 2})
    assert run.result["updates"] == pytest.approx((run.result["steps"] - 100) / 2, abs=1)
    tensors = load_newest(run.folder / "checkpoints").tensors
    assert all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values() if tensor.is_floating_point())
    assert tensors["optimizer.updates"].item() == run.result["updates"]


@pytest.mark.parametrize(("least_gain", "count"), [(1e6, 1), (0.0, 2)])
def test_the_faster_number_is_taken(
    least_gain: float, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process, where the constants can be set: the learner's side with a helper in a thread."""
    monkeypatch.setattr(helping, "LEAST_S", 0.0)
    monkeypatch.setattr(helping, "LEAST_GAIN", least_gain)
    config = assemble("CartPole-v1", {**TINY, "learner.compile": "off"}, "none")
    job = local.plan(config, "CartPole-v1", None, None, choose(config, 2))
    team = job.team
    assert team is not None
    learner, other = build_learner(job), build_learner(job)
    ours, theirs = pair()
    with ours, theirs:
        heard, channel = Channel(ours), Channel(theirs)
        side = helping.Helping(learner, team, channel, lambda: False)
        side.look()
        assert heard.receive() == []  # too early to tell
        learner.step.num_updates = helping.LOOK_AFTER
        side.look()
        assert heard.receive() == [{"helpers": 1}]
        thread = threading.Thread(target=help_train, args=(team, 1, other.step, lambda: False))
        thread.start()
        while not team.pids[1]:
            side.look()
        side.look()
        (note,) = heard.receive()
        assert f"training workers: {count}" in note["note"]
        assert (learner.step.gradient_by == learner.step.gradient) == (count == 1)
        side.rest()  # a compiled update takes one worker
        assert learner.step.gradient_by == learner.step.gradient
        side.go_on()
        assert (learner.step.gradient_by == learner.step.gradient) == (count == 1)
        side.close()
        side.go_on()
        thread.join(10)
    learner.replay.close()
    other.replay.close()


def test_workers_with_a_device_each_share_the_updates_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The CPU stands in for two CUDA devices: everything but the arithmetic goes the way it would go there."""
    monkeypatch.setattr(local, "pick_device", lambda asked, setting="": torch.device("cuda"))
    monkeypatch.setattr(local, "cuda_devices", lambda: ["cpu:0", "cpu:1"])
    run = train(tmp_path, **{"learner.workers": 2, "net.norm": "batch", "local.act_device": "cuda"})
    assert run.result["updates"] == pytest.approx((run.result["steps"] - 100) / 2, abs=1)
    tensors = load_newest(run.folder / "checkpoints").tensors
    counted = [tensor for name, tensor in tensors.items() if name.startswith("net.") and "num_batches" in name]
    assert counted
    assert {tensor.item() for tensor in counted} == {float(run.result["updates"])}
    assert tensors["optimizer.updates"].item() == run.result["updates"]


def test_a_job_names_the_devices_of_its_workers_and_actors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "pick_device", lambda asked, setting="": torch.device("cuda"))
    monkeypatch.setattr(local, "cuda_devices", lambda: ["cpu:0", "cpu:1", "cpu:2"])
    given = {**TINY, "learner.workers": 2, "local.act_device": "cuda", "local.actors": 2}
    config = assemble("CartPole-v1", given, "none")
    job = local.plan(config, "CartPole-v1", None, None, choose(config, 2))
    assert job.team is not None
    assert job.team.is_apart
    assert (job.device, job.placing.workers, job.placing.actors) == ("cpu:0", ("cpu:0", "cpu:1"), ("cpu:2", "cpu:2"))


def test_workers_and_a_compiled_graph_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="learner.workers=2"):
        train(tmp_path, **{"learner.workers": 2, "learner.compile": "on"})


def test_more_workers_than_rows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="learner.workers=16"):
        train(tmp_path, **{"learner.workers": 16})
