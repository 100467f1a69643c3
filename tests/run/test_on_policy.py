"""PPO in turn: repeatable, the same whether it was stopped or not, evaluated, steered and refused what it cannot use."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import freewheel
from freewheel import Callback, Moment
from freewheel.cli import eval as cli_eval
from freewheel.config import assemble
from freewheel.errors import ConfigError, EnvError
from freewheel.run.checkpoint import load_newest
from freewheel.run.layout import choose
from freewheel.run.policy import load_policy

SMALL: dict[str, Any] = {
    "algo": "ppo",
    "world.lanes": 3,
    "rollout.rows": 20,
    "net.hidden": (16,),
    "ppo.minibatches": 3,
    "ppo.epochs": 2,
    "eval_episodes": 0,
    "log.tensorboard": False,
    "checkpoint.every_steps": 0,
}


def train(folder: Path, env: Any = "CartPole-v1", steps: int | None = 500, **more: Any) -> freewheel.Run:
    settings = {**SMALL, "log.folder": str(folder), **more.pop("settings", {})}
    return freewheel.train(env, steps=steps, preset="none", settings=settings, is_quiet=True, **more)


def resume(run: freewheel.Run, **more: Any) -> freewheel.Run:
    return freewheel.train(resume=run.folder, is_quiet=True, **more)


def assert_same(one: freewheel.Run, two: freewheel.Run) -> None:
    kept, others = (load_newest(run.folder / "checkpoints") for run in (one, two))
    assert kept.tensors.keys() == others.tensors.keys()
    for name, tensor in kept.tensors.items():
        assert torch.equal(tensor, others.tensors[name]), name
    ignored = ("config", "seconds")
    assert {name: value for name, value in kept.state.items() if name not in ignored} == {
        name: value for name, value in others.state.items() if name not in ignored
    }


class StopAt(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, moment: Moment) -> None:
        if moment.step >= self.step:
            moment.stop()


def test_a_seed_gives_the_same_run_and_another_seed_another(tmp_path: Path) -> None:
    runs = [train(tmp_path / str(i), seed=seed) for i, seed in enumerate((7, 7, 8))]
    assert_same(runs[0], runs[1])
    assert runs[0].returns == runs[1].returns != runs[2].returns
    assert runs[0].result["runtime"] == "sequential"
    assert runs[0].result["updates"] == 500 // 60 * 6


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
def test_r93_stop_and_resume_equals_not_stopping(tmp_path: Path, env: str, settings: dict[str, Any], at: int) -> None:
    whole = train(tmp_path / "whole", env, settings=settings)
    part = train(tmp_path / "part", env, settings=settings, callbacks=[StopAt(at)])
    assert at <= part.result["steps"] < at + 3
    resumed = resume(part)
    assert_same(whole, resumed)
    assert part.returns + resumed.returns == whole.returns


def test_lanes_that_cannot_be_brought_back_begin_anew_and_are_counted(tmp_path: Path) -> None:
    settings = {"world.kind": "vector"}
    part = train(tmp_path, settings=settings, callbacks=[StopAt(250)])
    resumed = resume(part)
    assert resumed.result["steps"] >= 500
    state = load_newest(resumed.folder / "checkpoints").state
    assert state["rollout"]["lost"] <= 3
    assert state["version"] == 8


@pytest.mark.parametrize("kind", ["NEXT_STEP", "SAME_STEP", "DISABLED"])
def test_vector_envs_whose_lanes_are_not_in_step(tmp_path: Path, kind: str) -> None:
    mode = getattr(gymnasium.vector.AutoresetMode, kind)
    env = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 3, autoreset_mode=mode)
    try:
        run = train(tmp_path, env)
    finally:
        env.close()
    rollout = load_newest(run.folder / "checkpoints").state["rollout"]
    assert (rollout["lost"], rollout["stale"], rollout["overwritten"]) == (0, 0, 0)
    assert run.result["updates"] == run.result["steps"] // 60 * 6


def test_the_policy_is_loaded_with_its_statistics(tmp_path: Path) -> None:
    run = train(tmp_path, "Pendulum-v1", settings={"ppo.normalize_obs": True, "world.max_episode_steps": 30})
    policy = load_policy(run.folder)
    norm = policy.infer.net.norm  # type: ignore[attr-defined]
    saved = load_newest(run.folder / "checkpoints").tensors
    assert saved["stats.obs.count"] == 480
    np.testing.assert_allclose(norm.mean, saved["stats.obs.mean"], rtol=1e-6)
    assert not np.allclose(norm.var, 1)
    action = policy.act(np.array([1.0, 0.0, 0.5], np.float32))
    assert action.shape == (1,)
    assert policy.action_space.contains(action)
    assert policy.act(np.zeros((5, 3), np.float32)).shape == (5, 1)


def test_eval_plays_drawn_actions_where_that_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As in training: an untrained policy takes either action, where the likeliest is the same all the time."""
    run = train(tmp_path, settings={"eval_episodes": 4, "eval_sampled": True})

    def figures(*words: str) -> dict[str, Any]:
        cli_eval.main([str(run.folder), "--episodes", "4", "--json", "--quiet", *words])
        told: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
        return told

    assert figures()["return_mean"] == figures("--actions", "sampled")["return_mean"] == run.result["eval_return_mean"]
    greedy = figures("--actions", "greedy")
    assert (greedy["sampled"], figures()["sampled"]) == (False, True)
    assert greedy["return_mean"] != run.result["eval_return_mean"]


def test_eval_plays_the_likeliest_actions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = train(tmp_path, settings={"eval_episodes": 4})
    assert run.result["eval_return_mean"] > 0
    cli_eval.main([str(run.folder), "--episodes", "4", "--json", "--quiet"])
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["return_mean"] == run.result["eval_return_mean"]
    assert run.policy().act(np.zeros(4, np.float32)) in (0, 1)


def test_callbacks_and_logs_see_what_is_learned(tmp_path: Path) -> None:
    seen: list[dict[str, float]] = []

    class Watch(Callback):
        def on_update(self, moment: Moment) -> None:
            seen.append(moment.metrics())

    run = train(tmp_path, callbacks=[Watch()], settings={"log.every_s": 0.0})
    assert len(seen) == 8
    wanted = {"loss", "policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "explained_variance", "lr"}
    assert wanted | {"clip", "grad_norm", "policy_lag", "stale_rows"} <= seen[-1].keys()
    assert all(figures["policy_lag"] == 0 for figures in seen)
    with (run.folder / "metrics.csv").open() as file:
        newest = list(csv.DictReader(file))[-2]  # the last one is the account
    assert float(newest["learner/approx_kl"]) >= 0
    assert float(newest["train/updates"]) > 0
    assert run.account is not None
    assert run.account.warnings == ()
    assert run.result["ratio"] == pytest.approx(2.0, rel=0.05)


def test_actions_come_from_the_newest_weights(tmp_path: Path) -> None:
    """The first rows of a rollout are acted on after the updates: their log-chances are those of the new policy."""
    from freewheel.run.on_policy_parts import build_on_policy

    config = assemble("CartPole-v1", {**SMALL, "learner.lr": 0.05, "ppo.epochs": 1, "ppo.minibatches": 1}, "none")
    parts = build_on_policy(config, "CartPole-v1")
    try:
        ratios = []
        prepare = parts.learner.prepared

        def look(rows: Any) -> Any:
            made = prepare(rows)
            with torch.no_grad():
                out = parts.learner.step.net(made["obs"])
                log_prob, _ = parts.learner.step.ppo.actions.log_prob(out[:, :-1], made["action"])
            ratios.append((log_prob - made["log_prob"]).abs().max().item())
            torch.testing.assert_close(out[:, -1].numpy(), rows.value[rows.kept], rtol=1e-4, atol=1e-5)
            return made

        parts.learner.prepared = look  # type: ignore[method-assign]
        while parts.learner.version < 3:
            parts.rollout.available += parts.actor.receive(0)[0]
            if parts.learner.is_due():
                assert parts.learner.call(1, parts.actor.tail())
            parts.actor.answer(parts.learner.version)
        assert max(ratios) < 1e-4
    finally:
        parts.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"replay.rows": 500}, "replay.rows.*no use"),
        ({"learner.ratio": 4.0}, "learner.ratio.*no use"),
        ({"rollout.reuse": 1}, "rollout.reuse.*belongs to appo"),
        ({"rollout.collect": "episodes", "learner.compile": "on"}, "rollouts of any length"),
        ({"explore.end": 0.1}, "explore.end.*no use"),
        ({"q.gamma": 0.9}, "q.gamma"),
        ({"checkpoint.replay": True}, "no replay"),
        ({"learner.precision": "bf16"}, "fp32"),
        ({"ppo.rho_bar": 2.0}, "belongs to appo"),
        ({"local.slack_steps": 9}, "rollout.max_lag"),
        ({"ppo.minibatches": 7}, "must divide"),
        ({"net.norm": "batch"}, "net.norm"),
        ({"local.actors": 2}, "local.actors"),
        ({"algo": "dqn"}, "belongs to ppo"),
    ],
)
def test_what_has_no_effect_or_cannot_be_is_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train(tmp_path, settings=settings)
    assert list(tmp_path.iterdir()) == []


def test_a_loss_or_an_epsilon_has_no_place(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="its own loss"):
        train(tmp_path, loss=lambda *args: None)  # type: ignore[arg-type,return-value]

    class Steer(Callback):
        def on_step(self, moment: Moment) -> None:
            moment.set_epsilon(0.1)

    with pytest.raises(ConfigError, match="no epsilon"):
        train(tmp_path, callbacks=[Steer()])


def test_an_error_in_the_env_leaves_a_checkpoint(tmp_path: Path) -> None:
    class Breaks(gymnasium.Wrapper[Any, Any, Any, Any]):
        taken = 0

        def step(self, action: Any) -> Any:
            self.taken += 1
            if self.taken > 70:
                raise RuntimeError("the env broke")
            return self.env.step(action)

    with pytest.raises(EnvError, match="the env broke"):
        train(tmp_path, lambda: Breaks(gymnasium.make("CartPole-v1")))
    (folder,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    checkpoint = load_newest(folder / "checkpoints")
    assert checkpoint.state["version"] == 3
    assert checkpoint.step == 210


@pytest.mark.parametrize("env", ["CartPole-v1", "Acrobot-v1", "LunarLander-v3", "Pendulum-v1", "MountainCar-v0"])
def test_presets_hold_and_are_not_those_of_the_others(env: str) -> None:
    config = assemble(env, {"algo": "ppo"})
    assert config.net.hidden == (64, 64)
    assert (config.net.activation, config.net.init, config.net.rescale) == ("tanh", "orthogonal", False)
    assert config.learner.clip_norm == 0.5
    assert config != assemble(env, {"algo": "ppo"}, "none")


def test_the_preset_of_network_defence() -> None:
    config = assemble("x", {"algo": "ppo"}, "cyber")
    assert (config.ppo.epochs, config.ppo.clip, config.ppo.entropy_weight, config.ppo.value_weight) == (
        4,
        0.2,
        0.01,
        0.5,
    )
    assert 2_500 <= config.rollout.rows * config.world.lanes <= 20_000
    assert config.learner.lr == 2e-3


class Pictures(gymnasium.Env[Any, Any]):
    """Random pixels; cut after 9 steps."""

    observation_space = gymnasium.spaces.Box(0, 255, (36, 36, 1), np.uint8)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.at = 0
        return self._see(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.at += 1
        return self._see(), 1.0, False, self.at == 9, {}

    def _see(self) -> Any:
        return self.np_random.integers(0, 255, (36, 36, 1)).astype(np.uint8)


def test_pictures_and_stacks_of_them(tmp_path: Path) -> None:
    settings = {
        "net.channels": (4, 4),
        "net.kernels": (8, 4),
        "net.strides": (4, 2),
        "world.stack": 2,
        "eval_episodes": 2,
    }
    run = train(tmp_path, Pictures, 130, settings=settings)
    assert run.result["eval_return_mean"] == 9.0
    assert run.policy().act(np.zeros((36, 36, 1), np.uint8)) in (0, 1, 2)


def test_updates_that_are_not_finite_end_the_run_with_the_last_good_weights(tmp_path: Path) -> None:
    with pytest.raises(freewheel.Diverged, match="in a row"):
        train(tmp_path, settings={"learner.lr": 1e30, "ppo.epochs": 8})
    (folder,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    for name, tensor in load_newest(folder / "checkpoints").tensors.items():
        assert torch.isfinite(tensor.float()).all(), name


def test_one_process_is_chosen_whatever_the_cores() -> None:
    layout = choose(assemble("CartPole-v1", {"algo": "ppo"}), 8)
    assert layout.runtime == "sequential"
    assert "ppo" in layout.reason
