"""Settings that cannot work are refused before any other process is started, except the one that looks at the env's spaces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import freewheel
from freewheel.config import WorldConfig
from freewheel.errors import ConfigError
from freewheel.run import runtime
from freewheel.worlds.make import make_world
from freewheel.worlds.world import Group


def groups_here(env: Any, config: WorldConfig, seed: int, looks: bool = True) -> tuple[list[Group], WorldConfig]:
    world = make_world(env, config, seed)
    world.close()
    return list(world.groups), config


@pytest.mark.parametrize(
    ("env", "settings", "match"),
    [
        ("Pendulum-v1", {"algo": "dqn"}, "Discrete action space"),
        ("CartPole-v1", {"algo": "ppo", "ppo.log_std": -1.0}, "it is for Box actions"),
        (
            "CartPole-v1",
            {"algo": "dqn", "net.channels": (8,), "net.kernels": (3,), "net.strides": (1,)},
            "net.body=mlp",
        ),
    ],
)
def test_before_any_trial(
    env: str, settings: dict[str, Any], match: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(*given: Any, **named: Any) -> Any:
        raise AssertionError("a process was started")

    monkeypatch.setattr(runtime, "groups_apart", groups_here)
    monkeypatch.setattr(runtime, "choose_apart", started)
    monkeypatch.setattr(runtime.update_trial, "choose", started)
    monkeypatch.setattr("multiprocessing.process.BaseProcess.start", started)
    monkeypatch.setattr("os.fork", started)
    given = {"runtime": "local", "log.folder": str(tmp_path / "runs"), **settings}
    with pytest.raises(ConfigError, match=match):
        freewheel.train(env, settings=given, preset="none", is_quiet=True)
    assert not (tmp_path / "runs").exists()
