"""More than one training worker in a run: asked for, or measured."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from run_cases import A_ROLLOUT, UPDATES_A_ROLLOUT, planned, saved
from run_cases import train as train_small

import freewheel
from freewheel.errors import ConfigError
from freewheel.learners.gradient_workers import work
from freewheel.machine import worker_count
from freewheel.run import runtime, worker_control
from freewheel.run.build import build_learner
from freewheel.run.channel import Channel, pair
from freewheel.store.checkpoint import load_newest

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


@pytest.mark.parametrize("count", [1, 2])
def test_the_chosen_number_is_taken(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, where the constants can be set: the learner's side with a worker in a thread."""
    monkeypatch.setattr(worker_count, "LEAST_S", 0.0)
    monkeypatch.setattr(worker_count.trial, "choose", lambda times, gain: count)
    plan = planned(**{**TINY, "learner.compile": "off", "learner.workers": 0})
    (policy,) = plan.policies
    memory = policy.workers
    assert memory is not None
    learner, other = build_learner(plan, policy), build_learner(plan, policy)
    ours, theirs = pair()
    with ours, theirs:
        heard, channel = Channel(ours), Channel(theirs)
        side = worker_control.WorkerControl(learner, memory, channel, lambda: False)
        side.look()
        assert heard.receive() == []  # too early to tell
        learner.update.num_updates = worker_control.LOOK_AFTER
        side.look()
        assert heard.receive() == [{"workers": 1}]
        thread = threading.Thread(target=work, args=(memory, 1, other.update, lambda: False), daemon=True)
        thread.start()
        while not memory.pids[1]:
            side.look()
        side.look()
        (note,) = heard.receive()
        assert note["note"].startswith(f"Computing each gradient in {'one process' if count == 1 else '2 processes'} (")
        assert (learner.update.gradient_by == learner.update.gradient) == (count == 1)
        side.rest()  # a compiled update takes one worker
        assert learner.update.gradient_by == learner.update.gradient
        for goes_on in (side.go_on, side.look):  # `look` finds that the compiled update has failed
            side.rest()
            goes_on()
            assert (learner.update.gradient_by == learner.update.gradient) == (count == 1)
        side.close()
        side.go_on()
        thread.join(10)
    learner.close()
    other.close()


@pytest.mark.parametrize("algo", ["ppo", "appo"])
def test_workers_share_the_updates_from_rollouts(algo: str, tmp_path: Path) -> None:
    run = train_small(tmp_path, algo, "local", steps=800, settings={"learner.workers": 2, "ppo.normalize_obs": True})
    assert (
        run.result["updates"] == (run.result["steps"] - saved(run)["rollout"]["stale"]) // A_ROLLOUT * UPDATES_A_ROLLOUT
    )
    tensors = load_newest(run.folder / "checkpoints").tensors
    assert tensors["optimizer.updates"].item() == run.result["updates"]
    assert all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values() if tensor.is_floating_point())


def test_workers_with_a_device_each_share_the_updates_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The CPU stands in for two CUDA devices: everything but the arithmetic goes the way it would go there."""
    monkeypatch.setattr(runtime, "pick_device", lambda asked, setting="": torch.device("cuda"))
    monkeypatch.setattr(runtime, "cuda_devices", lambda: ["cpu:0", "cpu:1"])
    run = train(tmp_path, **{"learner.workers": 2, "net.norm": "batch", "local.act_device": "cuda"})
    assert run.result["updates"] == pytest.approx((run.result["steps"] - 100) / 2, abs=1)
    tensors = load_newest(run.folder / "checkpoints").tensors
    counted = [tensor for name, tensor in tensors.items() if name.startswith("net.") and "num_batches" in name]
    assert counted
    assert {tensor.item() for tensor in counted} == {float(run.result["updates"])}
    assert tensors["optimizer.updates"].item() == run.result["updates"]


def test_a_plan_names_the_devices_of_its_workers_and_actors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "pick_device", lambda asked, setting="": torch.device("cuda"))
    monkeypatch.setattr(runtime, "cuda_devices", lambda: ["cpu:0", "cpu:1", "cpu:2"])
    (policy,) = planned(**{**TINY, "learner.workers": 2, "local.act_device": "cuda", "local.actors": 2}).policies
    assert policy.workers is not None
    assert policy.workers.is_apart
    assert (policy.device, policy.placing.workers, policy.placing.actors) == (
        "cpu:0",
        ("cpu:0", "cpu:1"),
        ("cpu:2", "cpu:2"),
    )


def test_workers_and_a_compiled_graph_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="learner.workers=2"):
        train(tmp_path, **{"learner.workers": 2, "learner.compile": "on"})


def test_more_workers_than_rows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="learner.workers=16"):
        train(tmp_path, **{"learner.workers": 16})
