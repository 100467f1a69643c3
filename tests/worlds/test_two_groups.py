"""The two-group world of the tests: its rows, its resume bit for bit, and that both of its tasks can be learned."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from two_groups import BLUE, RED, GroupsWorld, make_two_groups

from freewheel.config import WorldConfig
from freewheel.worlds.make import make_world
from freewheel.worlds.world import Ready

KIND = "two_groups:make_two_groups"


def made(kwargs: str = "{}", lanes: int = 3, seed: int = 7, first_lane: int = 0) -> GroupsWorld:
    world = make_world("any", WorldConfig(kind=KIND, lanes=lanes, kwargs=kwargs), seed, first_lane=first_lane)
    assert isinstance(world, GroupsWorld)
    return world


def turn(world: GroupsWorld, random: np.random.Generator | None) -> list[tuple[Any, ...]]:
    """Everything that arrived, bit for bit; answered at random, or right."""
    seen = []
    for ready in world.recv():
        seen.append(record(ready))
        if random is None:
            actions = answers(ready)
        else:
            actions = random.integers(0, world.groups[ready.group].action_space.n, len(ready.lanes))  # type: ignore[attr-defined]
        world.send(ready.group, ready.lanes, {"action": actions})
    return seen


def answers(ready: Ready) -> Any:
    obs = ready.obs["obs"]
    return (obs[:, 0] > 0.5).astype(np.int64) if ready.group == RED else obs[:, :3].argmax(1)


def record(ready: Ready) -> tuple[Any, ...]:
    parts = [ready.lanes, ready.reward, ready.first, *ready.obs.values()]
    if (end := ready.ended) is not None:
        parts += [end.lanes, end.reward, end.terminated, end.truncated, *end.obs.values()]
    return (ready.group, *(part.tobytes() for part in parts))


@pytest.mark.parametrize("num_before", [0, 1, 2, 31])
def test_it_goes_on_bit_for_bit(num_before: int) -> None:
    whole, parted, resumed = made(), made(), made(seed=99)
    random, again = np.random.default_rng(0), np.random.default_rng(0)
    for _ in range(num_before):
        assert turn(whole, random) == turn(parted, again)
    state = {name: np.array(rows) for name, rows in parted.state().items()}
    for _ in range(5):  # whatever it did before
        turn(resumed, np.random.default_rng(1))
    resumed = made()
    assert resumed.set_state(state) == list(range(6))
    for _ in range(40):
        assert turn(whole, random) == turn(resumed, again)


def test_groups_differ_in_spaces_lanes_and_times() -> None:
    world = made('{"blue_lanes": 2}', lanes=2)
    red, blue = world.groups
    assert (red.name, red.num_lanes, blue.name, blue.num_lanes) == ("red", 2, "blue", 4)
    assert (red.obs_space.shape, blue.obs_space.shape) == ((3,), (5,))
    random, groups, ends = np.random.default_rng(0), [], {RED: set(), BLUE: set()}
    for at in range(40):
        given = world.recv()
        groups.append([ready.group for ready in given])
        for ready in given:
            if ready.ended is not None:
                ends[ready.group].add(at)
            actions = random.integers(0, 2, len(ready.lanes))
            world.send(ready.group, ready.lanes, {"action": actions})
    assert groups == [[RED], [RED, BLUE]] * 20
    assert ends[RED] - ends[BLUE]
    assert ends[BLUE] - ends[RED]


def test_a_group_may_rest_while_the_other_plays() -> None:
    world = made()
    (red,) = world.recv()
    assert red.group == RED
    for _ in range(5):
        (blue,) = world.recv()
        assert blue.group == BLUE
        world.send(BLUE, blue.lanes, {"action": np.zeros(3, np.int64)})


def test_the_right_answers_pay() -> None:
    world = made()
    rewards: dict[int, list[float]] = {RED: [], BLUE: []}
    for _ in range(30):
        for ready in world.recv():
            rewards[ready.group] += ready.reward[~ready.first].tolist()
            world.send(ready.group, ready.lanes, {"action": answers(ready)})
    assert {group: set(values) for group, values in rewards.items()} == {RED: {1.0}, BLUE: {1.0}}


def test_parts_of_its_lanes_are_the_whole() -> None:
    """Actors that share the lanes see what one actor with all of them sees."""

    def firsts(world: GroupsWorld) -> list[Any]:
        found = {ready.group: ready.obs["obs"] for _ in range(2) for ready in world.recv()}
        return [found[RED], found[BLUE]]

    whole, parts = firsts(made(lanes=3)), [firsts(made(lanes=1)), firsts(made(lanes=2, first_lane=1))]
    for group in (RED, BLUE):
        np.testing.assert_array_equal(whole[group], np.concatenate([part[group] for part in parts]))


def test_its_factory_reaches_other_processes() -> None:
    assert pickle.loads(pickle.dumps(make_two_groups)) is make_two_groups
