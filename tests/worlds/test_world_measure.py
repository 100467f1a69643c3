"""auto: what is measured decides, and the reason says so."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from pool_envs import Busy, Sleeping, Told

from freewheel.config import WorldConfig
from freewheel.machine import world_kind
from freewheel.machine.trial import Choice
from freewheel.machine.world_kind import Cost
from freewheel.worlds import measure
from freewheel.worlds.choose import choose_world
from freewheel.worlds.inline import InlineWorld
from freewheel.worlds.make import make_env, make_world
from freewheel.worlds.pool import PoolWorld
from freewheel.worlds.quick import QuickDiscrete, QuickMultiDiscrete, quicken


def choice(
    cost: Cost, cores: int, *, vector_s: float | None = None, hindrance: str = "", **given: Any
) -> Choice[WorldConfig]:
    """The choice by these figures, without a clock."""
    actors = given.pop("actors", 1)
    return world_kind.choose(WorldConfig(**given), "Told", cost, vector_s, hindrance, cores, actors)


BUSY, SHORT, WAITS = Cost(1e-3, 1e-3, False), Cost(6e-6, 6e-6, False), Cost(1e-3, 2e-5, True)


@pytest.mark.parametrize(
    ("cost", "cores", "kind", "workers"),
    [(BUSY, 4, "pool", 8), (BUSY, 1, "inline", 0), (SHORT, 4, "inline", 0), (WAITS, 1, "pool", 2)],
)
def test_a_pool_is_for_steps_that_are_long_or_wait(cost: Cost, cores: int, kind: str, workers: int) -> None:
    found = choice(cost, cores, lanes=8)
    assert (found.chosen.kind, found.chosen.workers) == (kind, workers)
    assert "a step takes" in found.reason


def test_lanes_that_wait_have_a_thread_each_and_busy_ones_workers() -> None:
    waits = choice(WAITS, 2, lanes=128).chosen
    assert waits.workers * waits.threads >= 128
    busy = choice(BUSY, 2, lanes=128).chosen
    assert (busy.workers, busy.threads) == (4, 1)
    assert choice(Cost(1e-4, 1e-4, False), 2, lanes=128).chosen.workers == 2


def test_a_vector_form_is_taken_only_where_it_is_faster() -> None:
    found = choice(SHORT, 2, lanes=8, vector_s=1e-6)
    assert found.chosen.kind == "vector"
    assert found.reason == "Using Told's own vector env (1 us per step, against 8 us one by one)."
    assert choice(SHORT, 2, lanes=8, vector_s=8e-6).chosen.kind == "inline"
    assert choice(BUSY, 2, lanes=8, vector_s=1e-4).chosen.kind == "vector"


def test_a_pool_has_to_be_clearly_faster_than_a_vector_form() -> None:
    """It takes processes, and what it will give is only reckoned."""
    as_good, slow = 0.55e-3, 0.9e-3  # the pool of two cores: about 0.52 ms a row
    assert choice(BUSY, 2, lanes=8, vector_s=as_good).chosen.kind == "vector"
    assert choice(BUSY, 2, lanes=8, vector_s=slow).chosen.kind == "pool"
    kept = choice(BUSY, 2, lanes=8, vector_s=slow, hindrance="it cannot leave.")
    assert kept.chosen.kind == "vector"
    assert "cannot leave" not in kept.reason


def test_a_vector_form_has_the_cores_that_are_free() -> None:
    assert choice(BUSY, 4, lanes=8, vector_s=1e-4).chosen.threads == 4
    assert choice(BUSY, 4, lanes=2, vector_s=1e-4).chosen.threads == 2
    assert choice(BUSY, 4, lanes=8, vector_s=1e-4, actors=3).chosen.threads == 1


def test_actors_that_share_the_lanes_are_counted() -> None:
    assert choice(BUSY, 8, lanes=64).chosen.kind == "pool"
    assert choice(BUSY, 8, lanes=64, actors=7).chosen.kind == "inline"


def test_what_was_asked_for_is_kept() -> None:
    assert choice(SHORT, 2, lanes=8, kind="pool").chosen.workers == 2
    asked = choice(SHORT, 2, lanes=8, workers=3, threads=2).chosen
    assert (asked.kind, asked.workers, asked.threads) == ("pool", 3, 2)


def test_an_env_that_cannot_leave_stays_inline_and_says_why() -> None:
    found = choice(BUSY, 2, lanes=8, hindrance="it holds a socket.")
    assert found.chosen.kind == "inline"
    assert "it holds a socket" in found.reason


def test_waiting_and_computing_are_told_apart() -> None:
    assert measure.measure_env(Sleeping()).waits
    assert not measure.measure_env(Busy()).waits


def test_settings_without_a_choice_come_back_as_they_are() -> None:
    for env, config in [
        ("CartPole-v1", WorldConfig(kind="inline")),
        ("CartPole-v1", WorldConfig(kind="pool", workers=2, threads=1)),
        (Told(), WorldConfig(lanes=1)),
    ]:
        assert choose_world(env, config) == Choice(config)


def test_a_broken_env_is_left_to_the_world_to_tell() -> None:
    found = choose_world(partial(Told, "raise", 1), WorldConfig(lanes=2), 2)
    assert found.chosen.kind == "inline"
    assert found.reason.startswith("Stepping the envs one by one: the step could not be measured (")
    assert "Error: " in found.reason
    assert choose_world(partial(Told, "raise", 1), WorldConfig(lanes=2, kind="pool"), 2).chosen.workers == 2


def test_a_pool_without_numbers_chooses_them() -> None:
    world = make_world(Sleeping, WorldConfig(lanes=6, kind="pool"), 0)
    assert isinstance(world, PoolWorld)
    assert world.num_threads == 6
    world.close()
    assert isinstance(make_world("CartPole-v1", WorldConfig(lanes=2), 0), InlineWorld)  # auto, where nobody measured


class Other(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Shows more than the env that it is the vector form of."""

    metadata: dict[str, Any] = {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, num_envs: int, **_: Any) -> None:
        self.num_envs = num_envs
        self.single_observation_space = spaces.Box(0, 1, (9,), np.float32)
        self.single_action_space = spaces.Discrete(3)


def test_a_vector_form_that_shows_something_else_is_not_taken() -> None:
    gymnasium.register("Other-v0", entry_point=Told, vector_entry_point=Other)
    try:
        assert choose_world("Other-v0", WorldConfig(lanes=4), 2).chosen.kind == "inline"
    finally:
        del gymnasium.registry["Other-v0"]


def test_a_quick_space_is_the_same_space() -> None:
    for plain in (spaces.Discrete(3), spaces.Discrete(4, start=2), spaces.Discrete(3, dtype=np.int32)):
        quick = QuickDiscrete(plain)
        assert quick == plain
        assert plain == quick
        assert repr(quick) == repr(plain)
        for x in (
            *map(np.int64, range(-1, 8)),
            1,
            7,
            np.int32(2),
            np.uint8(2),
            1.0,
            "1",
            None,
            np.array(2),
            np.array([2]),
        ):
            assert quick.contains(x) == plain.contains(x), x
    env = make_env("CartPole-v1", WorldConfig())
    assert isinstance(env.action_space, QuickDiscrete)
    env.close()


def test_a_quick_space_of_a_vector_env_is_the_same_space() -> None:
    for plain in (spaces.MultiDiscrete([3, 3, 3, 3]), spaces.MultiDiscrete([[2, 2], [2, 2]])):
        quick = QuickMultiDiscrete(plain)
        assert quick == plain
        assert plain == quick
        assert repr(quick) == repr(plain)
        zeros = np.zeros(plain.shape, np.int64)
        for x in (
            *(zeros + i for i in range(-1, 4)),
            *(np.where(np.arange(4).reshape(plain.shape) == 2, i, zeros) for i in (-(2**63), -1, 1, 2, 3, 2**62)),
            zeros.astype(np.int32),
            zeros.astype(np.float32),
            zeros.T[::-1],
            zeros.tolist(),
            zeros[:1],
            None,
            1,
        ):
            assert quick.contains(x) == plain.contains(x), x


def test_only_a_space_of_alike_places_is_quick() -> None:
    world = make_world("CartPole-v1", WorldConfig(lanes=3, kind="vector"), 0)
    assert isinstance(world._envs[0].action_space, QuickMultiDiscrete)  # type: ignore[attr-defined]
    world.close()
    for space in (spaces.MultiDiscrete([2, 3]), spaces.MultiDiscrete([2, 2], start=[1, 1]), spaces.Box(0, 1)):
        env = Told()
        env.action_space = space
        quicken(env)
        assert env.action_space is space
