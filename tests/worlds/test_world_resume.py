"""A world that goes on where it stopped: seeds, state and set_state."""

from __future__ import annotations

import json
from typing import Any

import gymnasium
import numpy as np
import pytest
from counting import NESTED, Counting, columns_of, observe
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from sole import recv, send

from freewheel.config import WorldConfig
from freewheel.spec import RowSpec
from freewheel.worlds import inline
from freewheel.worlds.make import make_world
from freewheel.worlds.seeds import episode_seed, lane_key
from freewheel.worlds.world import Ready, World

# Box2D's module is made by an older SWIG; with this warning as an error its import does not return.
pytestmark = pytest.mark.filterwarnings("ignore:builtin type .* has no __module__:DeprecationWarning")
IDS = ["CartPole-v1", "LunarLander-v3", "FrozenLake-v1", "Pendulum-v1"]


def record(ready: Ready) -> list[bytes]:
    """Everything that arrived, bit for bit."""
    parts = [ready.lanes, ready.reward, ready.first, *ready.obs.values()]
    if (end := ready.ended) is not None:
        parts += [end.lanes, end.reward, end.terminated, end.truncated, *end.obs.values()]
    return [part.tobytes() for part in parts]


def step(world: World, random: np.random.Generator) -> list[bytes]:
    ready = recv(world)
    seen = record(ready)
    space = world.action_space
    if isinstance(space, spaces.Discrete):
        actions = random.integers(0, int(space.n), len(ready.lanes)) + space.start
    else:
        assert isinstance(space, spaces.Box)
        actions = random.uniform(space.low, space.high, (len(ready.lanes), *space.shape)).astype(space.dtype)
    send(world, ready.lanes, actions)
    return seen


def make(env: Any, seed: int = 5, lanes: int = 3) -> World:
    return make_world(env, WorldConfig(lanes=lanes, kind="inline"), seed)


@pytest.mark.parametrize("env", IDS)
def test_a_stopped_world_goes_on_bit_for_bit(env: str) -> None:
    for num_before in (0, 1, 70):
        whole, parted, resumed = make(env), make(env), make(env, seed=99)
        random, again = np.random.default_rng(0), np.random.default_rng(0)
        for _ in range(num_before):
            assert step(whole, random) == step(parted, again)
        state = parted.state()
        assert state is not None
        # What comes back from a file: the same arrays, nothing else.
        state = {key: np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape) for key, array in state.items()}
        json.dumps({key: array.tolist() for key, array in state.items()})
        parted.close()
        resumed = make(env)
        for _ in range(7):  # whatever it did before
            step(resumed, np.random.default_rng(1))
        assert len(resumed.set_state(state)) == resumed.num_lanes
        for _ in range(40):
            assert step(whole, random) == step(resumed, again)
        whole.close()
        resumed.close()


def test_between_recv_and_send_the_same_lanes_are_given_again() -> None:
    world, random = make("CartPole-v1"), np.random.default_rng(0)
    for _ in range(40):
        step(world, random)
    ready = recv(world)
    state = world.state()
    resumed = make("CartPole-v1")
    assert len(resumed.set_state(state)) == resumed.num_lanes
    given_again = recv(resumed)
    ready.ended = None  # those rows were given before
    assert record(given_again) == record(ready)
    world.close()
    resumed.close()


class Unseeded(Counting):
    """Random in a way that no seed governs."""

    def observe(self) -> Any:
        return np.random.default_rng().random(4, np.float32)


def test_lanes_that_cannot_come_back_begin_again() -> None:
    def alternate() -> Counting:
        made.append(Unseeded if len(made) % 2 else Counting)
        return made[-1](0, [(50, "terminated")])

    made: list[type[Counting]] = []
    world, random = make(alternate, lanes=4), np.random.default_rng(0)
    for _ in range(9):
        step(world, random)
    state = world.state()
    made.clear()
    resumed = make(alternate, lanes=4)
    assert resumed.set_state(state) == [0, 2]
    begun = recv(resumed)
    assert begun.lanes.tolist() == [1, 3]
    assert begun.first.all()
    send(resumed, begun.lanes, np.ones(2, np.int64))
    # Counting counts its resets, so that its episode number differs; what matters is where each lane stands.
    went_on = recv(resumed)
    assert went_on.lanes.tolist() == [0, 2, 1, 3]
    assert went_on.obs["obs"][:2, 2].tolist() == [9, 9]
    assert not went_on.first.any()
    world.close()
    resumed.close()


def test_another_number_of_lanes_begins_episodes_not_yet_played() -> None:
    world, random = make("CartPole-v1", lanes=2), np.random.default_rng(0)
    for _ in range(100):
        step(world, random)
    state = world.state()
    assert state is not None
    resumed = make("CartPole-v1", lanes=3)
    assert not resumed.set_state(state)
    assert recv(resumed).first.all()
    after = resumed.state()
    assert after is not None
    assert (after["episode"] == state["episode"].max() + 1).all()
    assert not resumed.set_state(None)
    world.close()
    resumed.close()


def test_an_episode_too_long_to_keep_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline, "KEPT_ACTIONS", 10)
    world, random = make("Pendulum-v1"), np.random.default_rng(0)
    for num_steps, is_kept in [(8, True), (8, False)]:
        for _ in range(num_steps):
            step(world, random)
        resumed = make("Pendulum-v1")
        assert len(resumed.set_state(world.state())) == (resumed.num_lanes if is_kept else 0)
        resumed.close()
    world.close()


class Scribbler(gymnasium.Env[Any, Any]):
    """Shows the sum of its actions, and writes over the one it was given."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.sum = np.zeros(2, np.float32)
        return self.sum, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.sum += action  # in place: each observation is the same array
        action[:] = 0
        return self.sum, 0.0, False, False, {}


def test_an_env_may_write_into_its_arrays() -> None:
    world, random = make(Scribbler), np.random.default_rng(0)
    for _ in range(6):
        step(world, random)
    resumed, twice = make(Scribbler), make(Scribbler)
    assert len(resumed.set_state(world.state())) == resumed.num_lanes
    # What it wrote over while its episode was played again is kept as it was, too.
    assert len(twice.set_state(resumed.state())) == twice.num_lanes
    assert record(recv(world)) == record(recv(resumed)) == record(recv(twice))
    for each in (world, resumed, twice):
        each.close()


@pytest.mark.parametrize("actions", ["tuple", "dict"])
def test_nested_actions_come_back(actions: str) -> None:
    def made() -> World:
        return make(lambda: Stepping(0, [(50, "terminated")], actions=actions))

    def turn(world: World, at: int) -> list[bytes]:
        ready = recv(world)
        spec = RowSpec.of(world.groups[0].obs_space, world.groups[0].action_space)
        world.send(0, ready.lanes, columns_of(spec, [1 + (at + i) % 8 for i in range(len(ready.lanes))]))
        return record(ready)

    world = made()
    for at in range(9):
        turn(world, at)
    resumed, twice = made(), made()
    assert len(resumed.set_state(world.state())) == 3
    assert len(twice.set_state(resumed.state())) == 3
    for at in range(9, 15):
        assert turn(world, at) == turn(resumed, at) == turn(twice, at)
    for each in (world, resumed, twice):
        each.close()


class Stepping(Counting):
    """Does not count its resets, of which a resumed one has another number."""

    def observe(self) -> Any:
        return observe(self.lane, 0, self.count, self.action, self.is_nested)


def test_nested_observations_come_back() -> None:
    world, random = make(lambda: Nest()), np.random.default_rng(0)
    for _ in range(12):
        step(world, random)
    resumed = make(lambda: Nest())
    assert len(resumed.set_state(world.state())) == resumed.num_lanes
    assert record(recv(world)) == record(recv(resumed))
    world.close()
    resumed.close()


class Nest(gymnasium.Env[Any, Any]):
    observation_space = NESTED
    action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.look(), float(action), bool(self.np_random.random() < 0.1), False, {}

    def look(self) -> Any:
        return {
            "where": self.np_random.random(2, np.float32),
            "bag": (5 + int(self.np_random.integers(100)), self.np_random.integers(0, 2, 3).astype(np.int8)),
            "image": self.np_random.integers(0, 255, (2, 3), np.uint8),
            "precise": np.float64(self.np_random.random()),
        }


def test_the_seed_is_all_that_episodes_depend_on() -> None:
    def first_rows(seed: int, lanes: int, num: int = 60) -> list[list[bytes]]:
        world, random = make("CartPole-v1", seed, lanes), np.random.default_rng(1)
        seen = [step(world, random) for _ in range(num)]
        world.close()
        return seen

    assert first_rows(1, 4) == first_rows(1, 4)
    assert first_rows(1, 4) != first_rows(2, 4)
    world = make("CartPole-v1", 1, 8)
    begin = recv(world).obs["obs"]
    assert len(np.unique(begin, axis=0)) == 8
    world.close()


@settings(max_examples=200)
@given(st.integers(-(2**70), 2**70), st.integers(0, 5000), st.integers(0, 10**9))
def test_seeds_are_what_envs_take(seed: int, lane: int, episode: int) -> None:
    made = episode_seed(lane_key(seed, lane), episode)
    assert 0 <= made < 2**31
    assert made != episode_seed(lane_key(seed, lane), episode + 1)
    assert lane_key(seed, lane) != lane_key(seed, lane + 1)
    assert lane_key(seed, lane) != lane_key(seed + 1, lane)


def test_seeds_are_spread_and_stay_what_they_are() -> None:
    seeds = {episode_seed(lane_key(s, lane), e) for s in range(5) for lane in range(50) for e in range(100)}
    assert len(seeds) > 24_900  # of 25,000; chance makes about 0.15 pairs meet
    assert episode_seed(lane_key(0, 0), 0) == 1_401_122_455
