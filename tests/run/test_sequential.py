"""The sequential runtime: repeatable, exact in its ratio, and the same whether it was stopped or not."""

from __future__ import annotations

import asyncio
import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from run_cases import StopAt, assert_same, built, resume, saved
from run_cases import train as train_small

import freewheel
from freewheel import Callback, Moment
from freewheel.config import find_algo, from_dict
from freewheel.errors import CheckpointError, ConfigError, EnvError
from freewheel.run import state
from freewheel.store import saver
from freewheel.store.checkpoint import load, load_newest, save

REPLAY: dict[str, Any] = {
    "world.lanes": 3,
    "replay.rows": 600,
    "replay.warmup_rows": 60,
    "learner.updates_per_call": 2,
    "learner.target_every_updates": 10,
    "checkpoint.replay": True,
}
ROLLOUT: dict[str, Any] = {"world.lanes": 3, "rollout.rows": 20, "ppo.minibatches": 3}
FAST = {"explore.over_steps": 200}


def train(folder: Path, algo: str = "dqn", env: Any = "CartPole-v1", steps: int = 900, **more: Any) -> freewheel.Run:
    own = ROLLOUT if find_algo(algo).rows_are == "rollout" else REPLAY
    family = "ppo" if own is ROLLOUT else "dqn"
    settings = {**own, "algo": algo, **more.pop("settings", {})}
    return train_small(folder, family, "sequential", env, steps, settings=settings, **more)


def replay_of(run: freewheel.Run) -> bytes:
    checkpoint = load_newest(run.folder / "checkpoints")
    return checkpoint.files["replay.bin"].read_bytes()


@pytest.mark.parametrize("algo", ["dqn", "ppo"])
def test_a_seed_gives_the_same_run_and_another_seed_another(algo: str, tmp_path: Path) -> None:
    runs = [train(tmp_path / str(i), algo, steps=500, seed=seed) for i, seed in enumerate((7, 7, 8))]
    assert_same(runs[0], runs[1])
    assert runs[0].returns == runs[1].returns != runs[2].returns


@pytest.mark.parametrize(
    ("env", "algo", "settings"),
    [
        ("CartPole-v1", "dqn", FAST),
        ("CartPole-v1", "rainbow", {}),
        ("CartPole-v1", "iqn", {"replay.prioritized": True, "q.n_step": 3, **FAST}),
        (
            "CartPole-v1",
            "dqn",
            {"world.stack": 3, "net.norm": "batch", "learner.lr_schedule": "cosine", "explore.hold_steps": 9, **FAST},
        ),
        ("FrozenLake-v1", "qrdqn", FAST),
    ],
    ids=["dqn", "rainbow", "iqn-per", "stack-batchnorm", "frozenlake"],
)
def test_r93_stop_and_resume_equals_not_stopping(tmp_path: Path, env: str, algo: str, settings: dict[str, Any]) -> None:
    whole = train(tmp_path / "whole", algo, env, settings=settings)
    part = train(tmp_path / "part", algo, env, settings=settings, callbacks=[StopAt(433)])
    assert 433 <= part.result["steps"] < 440
    resumed = resume(part)
    assert resumed.folder == part.folder
    assert_same(whole, resumed)
    assert part.returns + resumed.returns == whole.returns
    heads = 64 + 64 * 3  # beside each lane's head they count its writers, of which the resumed run had two
    assert replay_of(whole)[heads:] == replay_of(resumed)[heads:]


@pytest.mark.parametrize("at", [58, 240, 433])
@pytest.mark.parametrize(
    ("env", "settings"),
    [
        ("CartPole-v1", {}),
        (
            "CartPole-v1",
            {"world.stack": 3, "ppo.normalize_obs": True, "ppo.normalize_reward": True, "net.shared": True},
        ),
        (
            "Pendulum-v1",
            {"learner.lr_schedule": "linear", "ppo.clip_schedule": "linear", "world.max_episode_steps": 30},
        ),
        ("CartPole-v1", {"rollout.collect": "episodes"}),
    ],
    ids=["cartpole", "stack-normal", "pendulum", "episodes"],
)
def test_r93_rollouts_too(tmp_path: Path, env: str, settings: dict[str, Any], at: int) -> None:
    whole = train(tmp_path / "whole", "ppo", env, 500, settings=settings)
    part = train(tmp_path / "part", "ppo", env, 500, settings=settings, callbacks=[StopAt(at)])
    assert at <= part.result["steps"] < at + 3
    resumed = resume(part)
    assert_same(whole, resumed)
    assert part.returns + resumed.returns == whole.returns


def test_resume_without_the_replay_warms_up_again_and_has_no_burst(tmp_path: Path) -> None:
    part = train(tmp_path, callbacks=[StopAt(400)], settings={"checkpoint.replay": False})
    updates: list[tuple[int, int]] = []

    class Watch(Callback):
        def on_update(self, moment: Moment) -> None:
            updates.append((moment.step, moment.updates))

    again = {"checkpoint.replay": True}
    resumed = resume(part, settings=again, callbacks=[Watch(), StopAt(600)])
    from_step = saved(resumed)["from_step"]
    assert from_step == part.result["steps"] + REPLAY["replay.warmup_rows"]
    resumed = resume(part, settings=again)
    assert saved(resumed)["from_step"] == from_step
    first_step, first_updates = updates[0]
    assert first_step >= part.result["steps"] + REPLAY["replay.warmup_rows"]
    assert first_updates <= part.result["updates"] + 4
    assert resumed.result["ratio"] == pytest.approx(8.0, rel=0.05)


def test_the_ratio_is_held_exactly(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []

    class Watch(Callback):
        def on_step(self, moment: Moment) -> None:
            seen.append((moment.step, moment.updates))

    run = train(tmp_path, callbacks=[Watch()])
    for (_, updates), (step, _) in zip(seen[1:], seen, strict=False):
        due = max(step - 60, 0) * 8.0 / 16
        assert due - 2 < updates <= due
    assert run.result["updates"] == int((run.result["steps"] - 60) * 8 / 32) * 2


def test_callbacks_see_all_and_may_stop(tmp_path: Path) -> None:
    class Watch(Callback):
        def __init__(self) -> None:
            self.episodes: list[float] = []
            self.paths: list[Path] = []
            self.metrics: dict[str, float] = {}

        def on_episode(self, moment: Moment, episode: freewheel.Episode) -> None:
            self.episodes.append(episode.ret)
            if len(self.episodes) == 12:
                moment.stop()

        def on_update(self, moment: Moment) -> None:
            self.metrics = moment.metrics()

        def on_checkpoint(self, moment: Moment, path: Path) -> None:
            self.paths.append(path)

    watch = Watch()
    run = train(tmp_path, callbacks=[watch], settings={"checkpoint.every_steps": 100})
    assert len(watch.episodes) >= 12
    assert run.returns == watch.episodes
    assert run.result["steps"] < 900
    assert {"loss", "grad_norm", "q_mean", "td_abs", "lr"} <= watch.metrics.keys()
    assert watch.paths
    assert watch.paths[-1].exists()


@pytest.mark.parametrize("algo", ["dqn", "ppo"])
def test_an_error_in_the_env_leaves_a_checkpoint(algo: str, tmp_path: Path) -> None:
    own = {"replay.warmup_rows": 16} if algo == "dqn" else {"rollout.rows": 6}
    with pytest.raises(freewheel.EnvError, match="lane 0.*the env broke.*step 21"):
        train(tmp_path, algo, env=lambda: Fails(), settings={"world.lanes": 1, **own})
    (folder,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    checkpoint = load_newest(folder / "checkpoints")
    assert checkpoint.step == 20
    assert checkpoint.state["updates"] == (2 if algo == "dqn" else 3 * 2 * 3)


class Fails:
    """An env that raises in its 21st step."""

    def __new__(cls) -> Any:
        class Raising(gymnasium.Wrapper[Any, Any, Any, Any]):
            taken = 0

            def step(self, action: Any) -> Any:
                self.taken += 1
                if self.taken > 20:
                    raise RuntimeError("the env broke")
                return self.env.step(action)

        return Raising(gymnasium.make("MountainCar-v0").unwrapped)


def test_a_checkpoint_of_one_stream_for_all_lanes_says_that_they_draw_anew(tmp_path: Path) -> None:
    found = load_newest(train(tmp_path, steps=100).folder / "checkpoints")
    for name in ("explore.drawn", "random.taus"):
        del found.tensors[name]
    made = built(**{**REPLAY, "net.hidden": from_dict(found.state["config"]).net.hidden})
    try:
        told = state.restore(made.plan, made.learners, made.actor, found)
        assert "exploration starts a new random stream" in (told or "")
    finally:
        made.close()


def test_f13_a_full_disk_is_told_and_the_last_checkpoint_is_not_taken_for_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written: list[int] = []

    def full(folder: Path, step: int, *more: Any, **others: Any) -> Path:
        written.append(step)
        raise CheckpointError("no space left")

    monkeypatch.setattr(saver, "save", full)
    with pytest.raises(CheckpointError, match="no space left Nor could it be saved elsewhere: no space left"):
        train(tmp_path, settings={"checkpoint.every_steps": 200, "checkpoint.spare": str(tmp_path / "spare")})
    assert len(written) == 4 + 3  # it went on after each; the last was tried with its rows, without them, and elsewhere
    told = capsys.readouterr().err
    assert told.count("no space left The next save tries again.") == 4
    assert told.count("The run is degraded") == 2


def test_what_changes_learning_cannot_be_given_on_resume(tmp_path: Path) -> None:
    part = train(tmp_path, callbacks=[StopAt(100)])
    with pytest.raises(ConfigError, match="q.gamma"):
        freewheel.train(resume=part.folder, settings={"q.gamma": 0.5})
    finished = resume(part)
    with pytest.raises(ConfigError, match="nothing left"):
        freewheel.train(resume=finished.folder)
    longer = freewheel.train(resume=finished.folder, steps=1000, is_quiet=True)
    assert longer.result["steps"] >= 1000


@pytest.mark.parametrize("algo", ["dqn", "ppo"])
def test_updates_that_are_not_finite_end_the_run_with_the_last_good_weights(algo: str, tmp_path: Path) -> None:
    own = (
        {"ppo.epochs": 8, "ppo.value_weight": 1e15} if algo == "ppo" else {"q.loss": "mse"}
    )  # ten updates of one rollout
    with pytest.raises(freewheel.Diverged, match="in a row"):
        train(tmp_path, algo, settings={"learner.lr": 1e3, "world.reward_scale": 1e15, **own})
    (folder,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    for name, tensor in load_newest(folder / "checkpoints").tensors.items():
        assert torch.isfinite(tensor.float()).all(), name


def test_a_run_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises((ConfigError, CheckpointError), match="nosuchrun"):
        freewheel.train(resume=tmp_path / "nosuchrun")


@pytest.mark.parametrize(
    ("algo", "settings"),
    [
        ("iqn", {**REPLAY, "world.stack": 3, "explore.hold_steps": 9, "replay.prioritized": True}),
        ("appo", {**ROLLOUT, "world.stack": 3, "ppo.normalize_obs": True, "ppo.normalize_reward": True}),
    ],
)
def test_what_is_put_back_is_what_was_saved(algo: str, settings: dict[str, Any], tmp_path: Path) -> None:
    family = "dqn" if algo == "iqn" else "ppo"
    one, two = (built(family, **{**settings, "algo": algo}) for _ in range(2))
    one.plan.checkpoints = tmp_path
    try:
        while one.plan.counts.steps < 200 or one.actor.waiting:
            one.actor.turn()
            while one.learners[0].turn():
                pass
        saved = state.gather(one.plan, one.learners, one.actor, one.plan.counts.steps, 1.0)
        path = save(tmp_path, one.plan.counts.steps, *saved, state.files_of(one.plan, one.learners))
        lost = state.restore(two.plan, two.learners, two.actor, load(path))
        assert lost is None
        (tensors, values), (again, others) = (
            state.gather(run.plan, run.learners, run.actor, one.plan.counts.steps, 1.0) for run in (one, two)
        )
        assert values == others
        assert tensors.keys() == again.keys()
        for name, tensor in tensors.items():
            np.testing.assert_array_equal(np.asarray(tensor), np.asarray(again[name]), err_msg=name)
    finally:
        one.close()
        two.close()


class Wanders(gymnasium.Env[Any, Any]):
    """Changes the current folder, or raises what is no Exception."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, how: str = "") -> None:
        self.how, self.count = how, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        if self.count == 150:
            if self.how.startswith("/"):
                os.chdir(self.how)
            elif self.how:
                raise asyncio.CancelledError("the simulator's task")
        return np.zeros(2, np.float32), 0.0, self.count % 20 == 0, False, {}


def test_a_run_stays_in_its_folder_when_the_env_leaves_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    where = partial(Wanders, str(tmp_path / "other"))
    run = train(Path("runs"), env=where, steps=900, settings={"checkpoint.every_steps": 300})
    assert Path.cwd() == tmp_path / "other"
    assert os.listdir() == []
    assert run.folder.parent == tmp_path / "runs"
    assert load_newest(run.folder / "checkpoints").step == 900
    assert json.loads((run.folder / "status.json").read_text())["status"] == "finished"


def test_a_cancelled_task_of_an_env_is_an_error_of_the_env(tmp_path: Path) -> None:
    """asyncio's is no Exception."""
    with pytest.raises(EnvError, match=r"raised CancelledError: the simulator's task in step\(\)"):
        train(tmp_path, env=partial(Wanders, "cancels"), steps=900)
    (folder,) = tmp_path.iterdir()
    assert load_newest(folder / "checkpoints").step > 0


def test_a_resumed_run_that_makes_no_update_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"checkpoint.replay": False}
    run = train(tmp_path, steps=300, settings=settings)
    freewheel.train(resume=run.folder, steps=330)
    told = capsys.readouterr().err
    assert told.count("warning: the policy was not trained further. Give more steps, or save the replay") == 1
