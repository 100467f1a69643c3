"""A lane's episodes follow from the seed and its number in the run, whichever part of the lanes an actor has."""

from __future__ import annotations

import itertools
from typing import Any

import gymnasium
import numpy as np
import pytest
from sole import recv, send

from freewheel.config import WorldConfig
from freewheel.errors import EnvError
from freewheel.worlds.make import make_world
from freewheel.worlds.world import World


def first_rows(world: World, turns: int = 40) -> np.ndarray[Any, Any]:
    """[lanes, turns, 4] of CartPole, always pushed to the same side: every lane ends several episodes."""
    seen = np.zeros((world.num_lanes, turns, 4), np.float32)
    try:
        for turn in range(turns):
            lanes = 0
            while lanes < world.num_lanes:
                ready = recv(world)
                seen[ready.lanes, turn] = ready.obs["obs"]
                lanes += len(ready.lanes)
            send(world, np.arange(world.num_lanes), np.zeros(world.num_lanes, np.int64))
    finally:
        world.close()
    return seen


@pytest.mark.parametrize("kind", ["inline", "pool"])
def test_two_parts_are_one_whole(kind: Any) -> None:
    def made(lanes: int, first_lane: int) -> World:
        config = WorldConfig(kind=kind, lanes=lanes, workers=1, threads=1, min_ready=lanes)
        return make_world("CartPole-v1", config, 7, first_lane=first_lane)

    whole = first_rows(made(4, 0))
    np.testing.assert_array_equal(whole, np.concatenate([first_rows(made(1, 0)), first_rows(made(3, 1))]))


def test_parts_of_a_vector_env_differ() -> None:
    parts = [make_world("CartPole-v1", WorldConfig(kind="vector", lanes=2), 7, first_lane=f) for f in (0, 2)]
    first, second = (first_rows(part, 1) for part in parts)
    assert not np.isin(first, second).any()


class Blank(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Begins with an observation that is none."""

    def reset(self, **given: Any) -> Any:
        obs, info = self.env.reset(**given)
        return np.full_like(obs, np.nan), info


def test_errors_name_the_lane_of_the_run() -> None:
    made = itertools.count()

    def make() -> Any:
        env = gymnasium.make("CartPole-v1")
        return Blank(env) if next(made) == 1 else env

    world = make_world(make, WorldConfig(kind="inline", lanes=2), 7, first_lane=6)
    with pytest.raises(EnvError, match=r"lane 7"):
        recv(world)
    world.close()
