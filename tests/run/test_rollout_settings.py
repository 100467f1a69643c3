"""Settings of rollouts: what is refused before anything is written, what presets say, which runtime is chosen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from run_cases import train

from freewheel.config import assemble
from freewheel.errors import ConfigError
from freewheel.run.layout import choose


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"replay.rows": 500}, "algo=ppo has no setting 'replay.rows'"),
        ({"learner.ratio": 4.0}, "learner.ratio.*does not use it"),
        ({"rollout.reuse": 1}, "rollout.reuse.*belongs to appo"),
        ({"rollout.collect": "episodes", "learner.compile": "on"}, "rollouts of any length"),
        ({"rollout.collect": "episodes", "learner.workers": 2}, "rollouts of any length"),
        ({"explore.end": 0.1}, "algo=ppo has no setting 'explore.end'"),
        ({"q.gamma": 0.9}, "algo=ppo has no setting 'q.gamma'"),
        ({"checkpoint.replay": True}, "no replay"),
        ({"ppo.rho_bar": 2.0}, "algo=ppo has no setting 'ppo.rho_bar'"),
        ({"local.slack_steps": 9}, "rollout.max_lag"),
        ({"ppo.minibatches": 7}, "must divide"),
        ({"net.norm": "batch"}, "net.norm"),
        ({"local.actors": 2}, "local.actors"),
        ({"algo": "dqn"}, "algo=dqn has no setting"),
    ],
)
def test_what_has_no_effect_or_cannot_be_is_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train(tmp_path, settings.pop("algo", "ppo"), settings={**settings, "ppo.epochs": 2})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"local.free": True}, r"local\.free.*rollout\.max_lag"),
        ({"local.publish_every_updates": 3}, "after each rollout"),
        ({"ppo.rho_bar": 0.0}, "must be between"),
    ],
)
def test_what_has_no_effect_in_local_is_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train(tmp_path, "appo", "local", settings=settings)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("algo", "cores", "runtime"), [("ppo", 8, "sequential"), ("appo", 8, "local"), ("appo", 1, "sequential")]
)
def test_the_runtime_that_is_chosen(algo: str, cores: int, runtime: str) -> None:
    layout = choose(assemble("CartPole-v1", {"algo": algo}), cores)
    assert layout.runtime == runtime
    assert algo != "ppo" or "ppo" in layout.reason
    assert layout.reason


@pytest.mark.parametrize("env", ["CartPole-v1", "Acrobot-v1", "LunarLander-v3", "Pendulum-v1", "MountainCar-v0"])
def test_presets_hold_and_are_not_those_of_the_others(env: str) -> None:
    config = assemble(env, {"algo": "ppo"})
    assert config.net.hidden == (64, 64)
    assert (config.net.activation, config.net.init, config.net.rescale) == ("tanh", "orthogonal", False)
    assert config.learner.clip_norm == 0.5
    assert config != assemble(env, {"algo": "ppo"}, "none")


def test_the_preset_of_network_defence() -> None:
    config: Any = assemble("x", {"algo": "ppo"}, "cyber")
    own = config.ppo
    assert (own.epochs, own.clip, own.entropy_weight, own.value_weight) == (4, 0.2, 0.01, 0.5)
    assert 2_500 <= config.rollout.rows * config.world.lanes <= 20_000
    assert config.learner.lr == 2e-3


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", "LunarLander-v3"])
def test_appo_takes_the_presets_of_ppo(env: str) -> None:
    one: Any = assemble(env, {"algo": "ppo"})
    two: Any = assemble(env, {"algo": "appo"})
    for name, value in vars(one.ppo).items():
        assert getattr(two.ppo, name) == value, name
    assert (one.net, one.learner, one.rollout.rows) == (two.net, two.learner, two.rollout.rows)
    assert two.rollout.max_lag == 1
