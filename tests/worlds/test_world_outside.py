"""Worlds from outside: world.kind as module:name, without touching the package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from outside_world import LENGTH, Bits

import freewheel
from freewheel.config import WorldConfig, assemble
from freewheel.errors import ConfigError, EnvError
from freewheel.worlds.choose import is_settled
from freewheel.worlds.make import make_world
from freewheel.worlds.world import World, recv_sole, sole_group

SETTINGS: dict[str, Any] = {
    "world.kind": "outside_world:Bits",
    "world.lanes": 4,
    "net.hidden": (16,),
    "replay.warmup_rows": 100,
    "learner.batch_size": 32,
    "learner.ratio": 16.0,
    "learner.lr": 3e-3,
    "learner.compile": "off",
    "explore.over_steps": 400,
    "eval_episodes": 8,
    "log.tensorboard": False,
    "q.gamma": 0.5,
}


@pytest.mark.parametrize("runtime", ["sequential", "local"])
def test_a_world_from_outside_is_trained_in(runtime: str, tmp_path: Path) -> None:
    settings = {**SETTINGS, "runtime": runtime, "log.folder": str(tmp_path)}
    run = freewheel.train("bits that no registry knows", steps=800, preset="none", settings=settings, is_quiet=True)
    assert run.result["steps"] >= 800
    assert run.result["eval_return_mean"] > 0.8 * LENGTH


def test_settings_say_which_worlds_there_are() -> None:
    assert assemble("CartPole-v1", {"world.kind": "outside_world:Bits"}, "none").world.kind == "outside_world:Bits"
    with pytest.raises(ConfigError, match=r"world.kind='pol' is not known. Did you mean pool\?"):
        assemble("CartPole-v1", {"world.kind": "pol"}, "none")
    with pytest.raises(ConfigError, match=r"There are: auto, inline, pool, vector, module:name"):
        assemble("CartPole-v1", {"world.kind": "xyz"}, "none")


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        ("outside_world:Bts", ConfigError, "has no 'Bts'. Did you mean Bits"),
        ("outside_world:number", ConfigError, "is int, not a function or class. Name one that returns a world"),
        ("no_such_module:Bits", ConfigError, "there is no module 'no_such_module'"),
        ("outside_world:nothing", ConfigError, "made NoneType, which has no name, may_rest, groups, recv"),
        ("outside_world:too_few", ConfigError, "made 1 lanes, not world.lanes=8"),
        ("outside_world:raises", EnvError, r"raised TypeError .* It is called with \(env, config, seed, first_lane"),
        ("outside_world", ConfigError, "world.kind='outside_world' is not known"),
    ],
)
def test_what_is_no_world_is_refused(kind: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make_world("bits", WorldConfig(kind=kind), 0)


def test_nothing_is_measured_for_a_world_from_outside() -> None:
    assert is_settled("bits", WorldConfig(kind="outside_world:Bits"))


def test_several_groups_need_several_policies() -> None:
    world = make_world("any", WorldConfig(kind="two_groups:make_two_groups", lanes=2), 0)
    with pytest.raises(ConfigError, match=r"two groups has 2 groups of lanes \(red, blue\)"):
        sole_group(world)
    world.close()


class Idle(Bits):
    def recv(self, timeout_s: float = 60.0) -> tuple[()]:
        return ()


def test_an_idle_world_is_an_error_where_a_lane_is_needed() -> None:
    world: World = Idle("simulators", WorldConfig(lanes=1), 0)
    with pytest.raises(EnvError, match=r"simulators had no lane ready within 60 s"):
        recv_sole(world)
