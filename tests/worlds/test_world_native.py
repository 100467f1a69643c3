"""Vector envs in native code, where they are installed: the rows they give keep the contract."""

from __future__ import annotations

import importlib.util
from typing import Any

import gymnasium
import numpy as np
import pytest
from sole import recv, send

from freewheel.config import WorldConfig
from freewheel.worlds.choose import choose_world
from freewheel.worlds.make import make_world
from freewheel.worlds.world import World

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs are not ours


def check(world: World, num_recvs: int) -> int:
    """Rows in order: a lane begins, goes on, ends, and begins again. The value is the number of ends."""
    space: Any = world.action_space
    random = np.random.default_rng(0)
    runs = np.zeros(world.num_lanes, np.bool_)
    ends = 0
    for _ in range(num_recvs):
        ready = recv(world)
        if ready.ended is not None:
            assert runs[ready.ended.lanes].all()
            runs[ready.ended.lanes] = False
            ends += len(ready.ended.lanes)
        assert (ready.first == ~runs[ready.lanes]).all()
        assert (ready.reward[ready.first] == 0).all()
        runs[ready.lanes] = True
        for rows in ready.obs.values():
            assert rows.shape == (len(ready.lanes), *world.obs_space.shape)
            assert rows.dtype == world.obs_space.dtype
        send(world, ready.lanes, random.integers(0, space.n, len(ready.lanes)))
    world.close()
    return ends


@pytest.mark.skipif(importlib.util.find_spec("envpool") is None, reason="envpool is not installed")
@pytest.mark.parametrize("batch_size", [6, 4, 1])
def test_envpool(batch_size: int) -> None:
    import envpool

    def many(num_envs: int, seed: int) -> Any:
        sizes = {"num_envs": num_envs, "batch_size": batch_size, "num_threads": 1}
        return envpool.make("CartPole-v1", env_type="gymnasium", seed=seed, **sizes)

    assert check(make_world(many, WorldConfig(lanes=6), 3), 1200 // batch_size) > 20


@pytest.mark.skipif(importlib.util.find_spec("ale_py") is None, reason="ale-py is not installed")
def test_atari() -> None:
    config = WorldConfig(lanes=2, kind="vector", image_size=84, grey=True, skip=4, max_episode_steps=8)
    world = make_world("ale_py:ALE/Pong-v5", config, 3)
    assert world.obs_space.shape == (84, 84)
    assert check(world, 20) == 4
    # Without these settings one env shows whole pictures in colour, which the vector form does not: auto cannot take it.
    assert choose_world("ale_py:ALE/Pong-v5", WorldConfig(lanes=2)).chosen.kind != "vector"


def test_cartpole_of_gymnasium() -> None:
    assert gymnasium.registry["CartPole-v1"].vector_entry_point is not None
    assert check(make_world("CartPole-v1", WorldConfig(lanes=6, kind="vector"), 3), 200) > 20
