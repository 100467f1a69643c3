"""From what the user gives to a world, and what is said when that cannot be."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from counting import Counting
from gymnasium.vector import SyncVectorEnv
from sole import recv, send

from freewheel.config import WorldConfig
from freewheel.errors import ConfigError, EnvError
from freewheel.worlds.inline import InlineWorld
from freewheel.worlds.make import env_name, make_env, make_world
from freewheel.worlds.vector import VectorWorld

MODULE = """
import gymnasium
import numpy as np

def make(lane=0):
    from counting import Counting
    return Counting(lane, [(2, "terminated")])

def make_many(num_envs, length=2):
    from counting import Counting
    return gymnasium.vector.SyncVectorEnv([lambda: Counting(0, [(length, "terminated")])] * num_envs)

def make_nothing():
    return None

def make_badly():
    return 1 / 0

number = 5
gymnasium.register("Own-v4", entry_point=make)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module of the user's in the folder that the command is called from."""
    (tmp_path / "own_envs.py").write_text(MODULE)
    (tmp_path / "broken_envs.py").write_text("import freewheel\nfreewheel.no_such_name\n")
    (tmp_path / "needy_envs.py").write_text("import a_package_that_is_missing\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("own_envs", "broken_envs", "needy_envs"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield "own_envs"
    gymnasium.registry.pop("Own-v4", None)
    for name in ("own_envs", "broken_envs", "needy_envs"):
        sys.modules.pop(name, None)


def refused(env: Any, message: str, error: type[Exception] = ConfigError, **config: Any) -> None:
    with pytest.raises(error, match=message):
        make_world(env, WorldConfig(**config), 0)


def counting() -> Counting:
    return Counting(0, [(50, "terminated")])


def test_every_way_to_name_an_env(module: str) -> None:
    cases: list[tuple[Any, dict[str, Any], type, str]] = [
        ("CartPole-v1", {}, InlineWorld, "CartPole-v1"),
        ("CartPole-v1", {"kind": "vector"}, VectorWorld, "CartPole-v1"),
        (gymnasium.make("CartPole-v1"), {"lanes": 1}, InlineWorld, "CartPole-v1"),
        (counting, {}, InlineWorld, "counting"),
        (lambda num_envs: SyncVectorEnv([counting] * num_envs), {}, VectorWorld, "lambda"),
        ("own_envs:make", {"kwargs": '{"lane": 7}'}, InlineWorld, "own_envs:make"),
        ("own_envs:make_many", {"kwargs": '{"length": 3}'}, VectorWorld, "own_envs:make_many"),
        ("own_envs:Own-v4", {}, InlineWorld, "own_envs:Own-v4"),
        ("counting:Counting", {"kwargs": '{"lane": 1, "script": [[1, "terminated"]]}'}, InlineWorld, "Counting"),
    ]
    for env, config, kind, name in cases:
        world = make_world(env, WorldConfig(**{"lanes": 3, **config}), 0)
        assert isinstance(world, kind)
        assert name in world.name
        ready = recv(world)
        assert len(ready.lanes) == config.get("lanes", 3)
        send(world, ready.lanes, np.full(len(ready.lanes), 1))
        recv(world)
        world.close()


def test_a_vector_env_keeps_its_number_of_lanes_and_stays_open() -> None:
    venv = SyncVectorEnv([counting] * 5)
    world = make_world(venv, WorldConfig(), 0)
    assert world.num_lanes == 5
    world.close()
    assert not venv.closed
    venv.close()


def test_an_unknown_id_gets_near_names() -> None:
    refused("LunarLander-v2", r"no env 'LunarLander-v2'. Did you mean LunarLander-v3\?")
    refused("CartPole", r"Did you mean CartPole-v1\?")
    refused("cartpole-v1", r"Did you mean CartPole-v1\?")
    refused("CartPoel-v1", r"Did you mean .*CartPole-v1")
    refused("Xyzzy-v5", "minigrid:MiniGrid-Empty-8x8-v0")
    refused("Cart Pole", "CartPole-v1")


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("gymnasium.envs.box2d")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "Box2D", None)
    refused("LunarLander-v3", r"LunarLander-v3 needs a package.*pip install 'freewheel\[box2d\]'")


def test_import_strings_that_lead_nowhere(module: str) -> None:
    refused("own_envs:mak", r"has no 'mak'. Did you mean make")
    refused("own_envs:number", "is int, not a function")
    refused("no_such_module:make", "there is no module 'no_such_module'")
    refused("no.such.module:make", "there is no module 'no'")
    refused("own_envs:make_nothing", "made NoneType, which is not a gymnasium.Env")
    refused("own_envs:make_badly", "ZeroDivisionError while it was made: division by zero", EnvError)
    refused("own_envs:make", "TypeError.*world.kwargs", EnvError, kwargs='{"colour": 1}')
    refused("broken_envs:make", "importing broken_envs raised AttributeError.*no_such_name", EnvError)
    refused("needy_envs:make", "a_package_that_is_missing", EnvError)


def test_settings_that_cannot_be(module: str) -> None:
    refused(counting(), r"can serve one lane, not world.lanes=8. Give a function that makes one")
    refused(counting(), "world.kind=vector cannot be used", lanes=1, kind="vector")
    refused(
        SyncVectorEnv([counting]), "world.kind=inline and world.max_episode_steps", kind="inline", max_episode_steps=5
    )
    refused("Acrobot-v1", "no vector env of its own.*inline", kind="vector")
    refused("own_envs:make", "world.kind=vector needs a gymnasium.vector.VectorEnv", kind="vector")
    refused("own_envs:make_many", "kind=inline cannot step", kind="inline")
    refused(lambda: SyncVectorEnv([counting]), "made 1 envs, not world.lanes=8", kind="vector")
    refused("CartPole-v1", "not JSON", kwargs="{")
    refused("CartPole-v1", "must be a JSON object", kwargs="[1]")
    refused("CartPole-v1", "lanes=0 must be at least 1", lanes=0)
    refused(5, "is not an env")


def test_lanes_made_before_a_failure_are_closed() -> None:
    closed = []

    class Closing(Counting):
        def close(self) -> None:
            closed.append(self)

    made: list[Closing] = []

    def make() -> Closing:
        if len(made) == 2:
            raise RuntimeError("no more ports")
        made.append(Closing(0, [(1, "terminated")]))
        return made[-1]

    refused(make, "no more ports", EnvError)
    assert closed == made


def test_episodes_are_cut_where_the_config_says() -> None:
    for env, kind in [("CartPole-v1", "inline"), ("CartPole-v1", "vector"), (counting, "inline")]:
        world = make_world(env, WorldConfig(lanes=1, kind=kind, max_episode_steps=4), 0)
        for step in range(5):
            ready = recv(world)
            send(world, ready.lanes, np.full(1, 1))
            assert (ready.ended is not None) == (step == 4)
        assert ready.ended is not None
        assert ready.ended.truncated.tolist() == [True]
        world.close()


def test_one_plain_env_to_watch() -> None:
    env = make_env("CartPole-v1", WorldConfig(), "rgb_array")
    env.reset(seed=0)
    assert np.asarray(env.render()).shape == (400, 600, 3)
    env.close()
    one = counting()
    assert make_env(one, WorldConfig()) is one
    with pytest.raises(ConfigError, match=r"render_mode=None, and 'rgb_array' is needed"):
        make_env(counting, WorldConfig(), "rgb_array")
    with pytest.raises(ConfigError, match="is a vector env"):
        make_env(SyncVectorEnv([counting]), WorldConfig())


def test_names() -> None:
    assert env_name("CartPole-v1") == "CartPole-v1"
    assert env_name(counting) == "counting"
    assert env_name(counting()) == "Counting"
    assert env_name(gymnasium.make("CartPole-v1")) == "CartPole-v1"
    assert env_name(Counting) == "Counting"
