"""An option that is accepted takes effect or is refused, also where only the env or the arguments tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import pytest

import freewheel
from freewheel.config import assemble
from freewheel.errors import ConfigError

TINY: dict[str, Any] = {
    "runtime": "sequential",
    "replay.warmup_rows": 64,
    "learner.batch_size": 16,
    "learner.updates_per_call": 2,
    "log.tensorboard": False,
    "log.csv": False,
}


def train(
    tmp_path: Path, env: Any = "CartPole-v1", settings: dict[str, Any] | None = None, **more: Any
) -> freewheel.Run:
    given = {**TINY, "eval_episodes": 0, "log.folder": str(tmp_path), **(settings or {})}
    if "resume" not in more:
        more = {"preset": "none", "steps": 150, **more}
    return freewheel.train(env, settings=given if env is not None else {}, is_quiet=True, **more)


def my_loss(forward: Any, params: Any, target: Any, batch: Any, draws: Any) -> Any:
    q = forward(params, batch["obs"], None, None)
    return q.square().mean(), freewheel.Outcome(batch["reward"].abs(), q.detach(), batch["reward"])


@pytest.mark.parametrize(
    ("settings", "more", "message"),
    [
        ({"net.channels": (8, 8, 8)}, {}, "net.channels"),
        ({"q.huber": 2.0}, {"loss": my_loss}, "q.huber"),
        ({"q.double": False}, {"loss": my_loss}, "q.double"),
        ({"q.noisy": True, "explore.hold_steps": 5}, {}, "explore.hold_steps"),
    ],
    ids=["channels-of-no-image", "huber-of-own-loss", "double-of-own-loss", "hold-without-epsilon"],
)
def test_a_setting_without_effect_is_refused(
    settings: dict[str, Any], more: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"{message}.*no effect"):
        train(tmp_path, settings=settings, **more)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["world.workers", "world.threads", "world.min_ready", "world.ready_wait_s"])
@pytest.mark.parametrize("kind", ["auto", "inline"])
def test_in_turn_only_a_pool_has_workers(kind: str, name: str, tmp_path: Path) -> None:
    settings = {"world.kind": kind, "world.lanes": 2, name: 2.0 if name.endswith("_s") else 2}
    with pytest.raises(ConfigError, match=rf"{name} was given, but has no effect.*world\.kind={kind} is not a pool"):
        train(tmp_path, settings=settings)
    assert list(tmp_path.iterdir()) == []


PPO: dict[str, Any] = {
    "runtime": "sequential",
    "eval_episodes": 0,
    "world.lanes": 2,
    "rollout.rows": 16,
    "log.tensorboard": False,
    "log.csv": False,
}


def train_ppo(tmp_path: Path, env: str, algo: str = "ppo", **settings: Any) -> freewheel.Run:
    given = {**PPO, "log.folder": str(tmp_path), **settings}
    return freewheel.train(env, algo=algo, steps=64, preset="none", settings=given, is_quiet=True)


@pytest.mark.parametrize("runtime", ["sequential", "local"])
def test_a_deviation_is_for_numbers(runtime: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ppo\.log_std was given, but has no effect.*Discrete\(2\)"):
        train_ppo(tmp_path, "CartPole-v1", **{"ppo.log_std": -1.0, "runtime": runtime})
    assert list(tmp_path.iterdir()) == []


def test_a_deviation_counts_where_actions_are_numbers(tmp_path: Path) -> None:
    run = train_ppo(tmp_path, "Pendulum-v1", **{"ppo.log_std": -1.0})
    assert run.config.ppo.log_std == -1.0


@pytest.mark.parametrize(("algo", "runtime"), [("ppo", "sequential"), ("ppo", "local"), ("appo", "sequential")])
def test_whole_episodes_are_never_too_old(algo: str, runtime: str, tmp_path: Path) -> None:
    settings = {"rollout.collect": "episodes", "rollout.max_lag": 2, "runtime": runtime}
    with pytest.raises(ConfigError, match=r"rollout\.max_lag was given, but has no effect.*leaves no row out"):
        train_ppo(tmp_path, "CartPole-v1", algo, **settings)
    assert list(tmp_path.iterdir()) == []


def test_actors_of_appo_go_by_the_lag_also_with_whole_episodes() -> None:
    settings = {"algo": "appo", "rollout.collect": "episodes", "rollout.max_lag": 2}
    assert assemble("CartPole-v1", settings, "none").rollout.max_lag == 2


def test_held_actions_count_with_noise_and_a_floor(tmp_path: Path) -> None:
    train(tmp_path, settings={"q.noisy": True, "explore.hold_steps": 5, "explore.floor": 0.1})


@pytest.mark.parametrize("name", ["world.lanes", "eval_episodes"])
def test_a_vector_env_refuses_what_it_cannot_follow(name: str, tmp_path: Path) -> None:
    env = gymnasium.make_vec("CartPole-v1", 3)
    try:
        with pytest.raises(ConfigError, match=name):
            train(tmp_path, env, settings={name: 5})
    finally:
        env.close()


def test_drawn_actions_are_refused_where_nothing_is_evaluated(tmp_path: Path) -> None:
    env = gymnasium.make_vec("CartPole-v1", 2)
    settings = {"runtime": "sequential", "rollout.rows": 16, "log.folder": str(tmp_path), "eval_sampled": True}
    try:
        with pytest.raises(
            ConfigError, match="eval_sampled=True was given, but a VectorEnv object cannot be evaluated"
        ):
            freewheel.train(env, algo="ppo", steps=64, preset="none", settings=settings)
    finally:
        env.close()
    with pytest.raises(ConfigError, match="eval_sampled was given, but has no effect: eval_episodes=0"):
        train_ppo(tmp_path, "CartPole-v1", eval_sampled=True)
    with pytest.raises(
        ConfigError, match="eval_sampled was given, but has no effect: algo=dqn has no policy to sample from"
    ):
        train(tmp_path, settings={"eval_sampled": True, "eval_episodes": 5})


def test_without_an_evaluation_it_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    env = gymnasium.make_vec("CartPole-v1", 3)
    settings = {**TINY, "log.folder": str(tmp_path)}
    run = freewheel.train(env, steps=100, preset="none", settings=settings, is_quiet=True)
    env.close()
    assert run.result["eval_return_mean"] is None
    assert "No evaluation: " in capsys.readouterr().err


def test_a_preset_does_not_go_with_resume(tmp_path: Path) -> None:
    run = train(tmp_path)
    with pytest.raises(ConfigError, match="preset"):
        train(tmp_path, None, resume=run.folder, preset="CartPole-v1", steps=300)


def test_a_compiled_call_draws_no_more_than_the_warm_up_holds(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"128 rows at once.*replay\.warmup_rows=64"):
        train(tmp_path, settings={"learner.compile": "on", "learner.updates_per_call": 16})
    # In turn nothing is compiled unless it is asked for, so that 16 rows are enough.
    train(tmp_path, settings={"learner.compile": "auto", "learner.updates_per_call": 16}, steps=20)
