"""The sequential runtime: repeatable, exact in its ratio, and the same whether it was stopped or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import freewheel
from freewheel import Callback, Moment
from freewheel.config import assemble, from_dict
from freewheel.errors import CheckpointError, ConfigError
from freewheel.run import state
from freewheel.run.checkpoint import load, load_newest
from freewheel.run.parts import build

SMALL: dict[str, Any] = {
    "runtime": "sequential",
    "world.lanes": 3,
    "explore.over_steps": 200,
    "net.hidden": (16,),
    "replay.rows": 600,
    "replay.warmup_rows": 60,
    "learner.batch_size": 16,
    "learner.ratio": 8.0,
    "learner.updates_per_call": 2,
    "learner.target_every_updates": 10,
    "eval_episodes": 0,
    "log.tensorboard": False,
    "checkpoint.every_steps": 0,
    "checkpoint.replay": True,
}


def train(folder: Path, env: Any = "CartPole-v1", steps: int | None = 900, **more: Any) -> freewheel.Run:
    settings = {**SMALL, "log.folder": str(folder)}
    if more.get("algo") == "rainbow":
        del settings["explore.over_steps"]  # its noise explores
    settings |= more.pop("settings", {})
    if "resume" in more:
        env, settings = None, {name: value for name, value in settings.items() if name.startswith("checkpoint.")}
    preset = "auto" if "resume" in more else "none"
    return freewheel.train(env, steps=steps, preset=preset, settings=settings, is_quiet=True, **more)


def saved(run: freewheel.Run) -> tuple[dict[str, torch.Tensor], dict[str, Any], bytes]:
    checkpoint = load_newest(run.folder / "checkpoints")
    values = {name: value for name, value in checkpoint.state.items() if name not in ("config", "seconds")}
    replay = checkpoint.path_of("replay.bin").read_bytes() if checkpoint.files else b""
    return checkpoint.tensors, values, replay


def assert_same(one: freewheel.Run, two: freewheel.Run) -> None:
    tensors, values, _ = saved(one)
    others, other_values, _ = saved(two)
    assert tensors.keys() == others.keys()
    for name, tensor in tensors.items():
        assert torch.equal(tensor, others[name]), name
    assert values == other_values


class StopAt(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, moment: Moment) -> None:
        if moment.step >= self.step:
            moment.stop()


def test_a_seed_gives_the_same_run_and_another_seed_another(tmp_path: Path) -> None:
    runs = [train(tmp_path / str(i), seed=seed) for i, seed in enumerate((7, 7, 8))]
    assert_same(runs[0], runs[1])
    assert runs[0].returns == runs[1].returns
    assert runs[0].returns != runs[2].returns


@pytest.mark.parametrize(
    ("env", "algo", "settings"),
    [
        ("CartPole-v1", "dqn", {}),
        ("CartPole-v1", "rainbow", {}),
        ("CartPole-v1", "iqn", {"replay.prioritized": True, "q.n_step": 3}),
        (
            "CartPole-v1",
            "dqn",
            {"world.stack": 3, "net.norm": "batch", "learner.lr_schedule": "cosine", "explore.hold_steps": 9},
        ),
        ("FrozenLake-v1", "qrdqn", {}),
    ],
    ids=["dqn", "rainbow", "iqn-per", "stack-batchnorm", "frozenlake"],
)
def test_r93_stop_and_resume_equals_not_stopping(tmp_path: Path, env: str, algo: str, settings: dict[str, Any]) -> None:
    whole = train(tmp_path / "whole", env, algo=algo, settings=settings)
    part = train(tmp_path / "part", env, algo=algo, settings=settings, callbacks=[StopAt(433)])
    assert 433 <= part.result["steps"] < 440
    resumed = train(tmp_path / "part", algo=None, steps=None, resume=part.folder)
    assert resumed.folder == part.folder
    assert_same(whole, resumed)
    assert part.returns + resumed.returns == whole.returns
    heads = 64 + 64 * 3  # beside each lane's head they count its writers, of which the resumed run had two
    assert saved(whole)[2][heads:] == saved(resumed)[2][heads:]


def test_resume_without_the_replay_warms_up_again_and_has_no_burst(tmp_path: Path) -> None:
    part = train(tmp_path, callbacks=[StopAt(400)], settings={"checkpoint.replay": False})
    updates: list[tuple[int, int]] = []

    class Watch(Callback):
        def on_update(self, moment: Moment) -> None:
            updates.append((moment.step, moment.updates))

    again = {"checkpoint.replay": True}
    resumed = train(tmp_path, steps=None, resume=part.folder, settings=again, callbacks=[Watch(), StopAt(600)])
    from_step = saved(resumed)[1]["from_step"]
    assert from_step == part.result["steps"] + SMALL["replay.warmup_rows"]
    resumed = train(tmp_path, steps=None, resume=part.folder, settings=again)
    assert saved(resumed)[1]["from_step"] == from_step
    first_step, first_updates = updates[0]
    assert first_step >= part.result["steps"] + SMALL["replay.warmup_rows"]
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


def test_epsilon_can_be_changed_on_the_way(tmp_path: Path) -> None:
    class Steer(Callback):
        def on_step(self, moment: Moment) -> None:
            moment.set_epsilon(0.25)

    run = train(tmp_path, callbacks=[Steer()], steps=100)
    assert load_newest(run.folder / "checkpoints").state["epsilon_override"] == 0.25


def test_an_error_in_the_env_leaves_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(freewheel.EnvError, match="lane 0.*step 21"):
        train(tmp_path, env=lambda: Fails(), settings={"world.lanes": 1, "replay.warmup_rows": 16})
    (folder,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    assert load_newest(folder / "checkpoints").step == 20


class Fails:
    """An env that raises in its 21st step."""

    def __new__(cls) -> Any:
        import gymnasium

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
    parts = build(from_dict(found.state["config"]), "CartPole-v1")
    try:
        assert "what lanes try is drawn anew" in (state.restore(parts, found) or "")
    finally:
        parts.close()


def test_an_override_given_on_resume_holds(tmp_path: Path) -> None:
    part = train(tmp_path, callbacks=[StopAt(100)])
    resumed = freewheel.train(resume=part.folder, settings={"explore.override": 0.3}, is_quiet=True)
    assert saved(resumed)[1]["epsilon_override"] == 0.3


def test_f13_a_full_disk_is_told_and_the_last_checkpoint_is_not_taken_for_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written: list[int] = []

    def full(folder: Path, step: int, *more: Any, **others: Any) -> Path:
        written.append(step)
        raise CheckpointError("no space left")

    monkeypatch.setattr(state, "save", full)
    with pytest.raises(CheckpointError, match="no space"):
        train(tmp_path, settings={"checkpoint.every_steps": 200})
    assert len(written) == 5  # it went on after each, and ended with an error
    assert capsys.readouterr().err.count("no space left") == 4


def test_what_changes_learning_cannot_be_given_on_resume(tmp_path: Path) -> None:
    part = train(tmp_path, callbacks=[StopAt(100)])
    with pytest.raises(ConfigError, match="q.gamma"):
        freewheel.train(resume=part.folder, settings={"q.gamma": 0.5})
    finished = train(tmp_path, steps=None, resume=part.folder)
    with pytest.raises(ConfigError, match="nothing left"):
        freewheel.train(resume=finished.folder)
    longer = freewheel.train(resume=finished.folder, steps=1000, is_quiet=True)
    assert longer.result["steps"] >= 1000


def test_a_run_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises((ConfigError, CheckpointError), match="nosuchrun"):
        freewheel.train(resume=tmp_path / "nosuchrun")


def test_what_is_put_back_is_what_was_saved(tmp_path: Path) -> None:
    settings = {**SMALL, "world.stack": 3, "explore.hold_steps": 9, "replay.prioritized": True, "log.folder": "none"}
    config = assemble("CartPole-v1", {**settings, "algo": "iqn"}, "none")
    parts, others = build(config, config.env), build(config, config.env)
    try:
        steps = 0
        while steps < 200:
            steps += parts.actor.turn(steps, 0)[0]
            while parts.learner.due(steps) > 0:
                parts.learner.call(steps)
        path = state.write(tmp_path, parts, config, steps, 1.0)
        assert state.restore(others, load(path)) is None
        tensors, values = state.gather(parts, config, steps, 1.0)
        again, other_values = state.gather(others, config, steps, 1.0)
        assert values == other_values
        assert tensors.keys() == again.keys()
        for name, tensor in tensors.items():
            np.testing.assert_array_equal(np.asarray(tensor), np.asarray(again[name]), err_msg=name)
    finally:
        parts.close()
        others.close()
