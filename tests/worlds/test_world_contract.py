"""What every world must do: the same rows from the same envs, whoever steps them and however they begin again."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from counting import SCRIPTS, Counting, Row, Script, act, expected_rows, leaves_of, observe, play
from fake_envpool import FakePool
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from sole import recv, send
from two_groups import GroupsWorld

from freewheel.config import WorldConfig
from freewheel.errors import ConfigError
from freewheel.memory.replay import Replay
from freewheel.spec import RowSpec
from freewheel.worlds.envpool_async import AsyncVectorWorld
from freewheel.worlds.inline import InlineWorld
from freewheel.worlds.make import make_world
from freewheel.worlds.pool import PoolWorld
from freewheel.worlds.vector import VectorWorld
from freewheel.worlds.world import World

Make = Callable[[list[Callable[[], Any]]], World]


def inline(makes: list[Callable[[], Any]], resets_at_once: int | None = None) -> World:
    return InlineWorld([make() for make in makes], 3, "Counting", resets_at_once=resets_at_once)


def vector(makes: list[Callable[[], Any]], mode: AutoresetMode, copy: bool = True) -> World:
    return VectorWorld(SyncVectorEnv(makes, copy=copy, autoreset_mode=mode), 3, "Counting")


def pool(makes: list[Callable[[], Any]], workers: int = 2, threads: int = 1, min_ready: int = 100) -> World:
    return PoolWorld(makes, 3, "Counting", workers, threads=threads, min_ready=min_ready)


def envpool_async(makes: list[Callable[[], Any]]) -> World:
    return AsyncVectorWorld(FakePool(makes, max(len(makes) // 2, 1)), 3, "Counting")


def groups(makes: list[Callable[[], Any]], every: tuple[int, int] = (1, 1)) -> World:
    """The first lane is the one group, the others are the other; a sole lane is both the world's and its group's only one."""
    parts = {"first": makes[:1], "others": makes[1:]}
    worlds = {name: InlineWorld([make() for make in own], 3, name) for name, own in parts.items() if own}
    return GroupsWorld("Counting", worlds, every)


WORLDS: dict[str, Make] = {
    "inline": inline,
    "groups": groups,
    "pool": pool,
    "pool/threads": partial(pool, threads=2),
    "next_step": partial(vector, mode=AutoresetMode.NEXT_STEP),
    "same_step": partial(vector, mode=AutoresetMode.SAME_STEP),
    "disabled": partial(vector, mode=AutoresetMode.DISABLED),
}
# The same array at every step, as a vector env may give.
SHARED: dict[str, Make] = {
    "next_step/shared": partial(vector, mode=AutoresetMode.NEXT_STEP, copy=False),
    "same_step/shared": partial(vector, mode=AutoresetMode.SAME_STEP, copy=False),
    "disabled/shared": partial(vector, mode=AutoresetMode.DISABLED, copy=False),
}

# Some lanes come in a later recv.
LATER: dict[str, Make] = {
    "inline/later": partial(inline, resets_at_once=100),
    "pool/first": partial(pool, workers=3, min_ready=1),
    "envpool_async": envpool_async,
    "groups/slower": partial(groups, every=(1, 2)),
}


@pytest.fixture(params=WORLDS.values(), ids=WORLDS.keys())
def make(request: pytest.FixtureRequest) -> Make:
    chosen: Make = request.param
    return chosen


def lanes_of(scripts: list[Script], **options: Any) -> list[Callable[[], Any]]:
    return [partial(Counting, lane, script, **options) for lane, script in enumerate(scripts)]


def assert_rows(rows: list[list[Row]], scripts: list[Script], is_nested: bool = False) -> None:
    for lane, script in enumerate(scripts):
        assert rows[lane] == expected_rows(lane, script, len(rows[lane]), is_nested)


def test_rows_are_those_of_the_envs(make: Make) -> None:
    options: list[dict[str, Any]] = [{}, {"is_nested": True}, {"actions": "box"}]
    for option in options:
        world = make(lanes_of(SCRIPTS, **option))
        _, rows = play(world, 60)
        world.close()
        assert_rows(rows, SCRIPTS, option.get("is_nested", False))
        assert min(map(len, rows)) >= 60


def test_groups_say_what_their_lanes_are(make: Make) -> None:
    world = make(lanes_of(SCRIPTS))
    assert sum(group.num_lanes for group in world.groups) == len(SCRIPTS)
    assert len(world.groups) > 1 or world.groups[0].name == ""
    for ready in world.recv():
        group = world.groups[ready.group]
        fields = RowSpec.of(group.obs_space, group.action_space).fields
        found = {name: (str(rows.dtype), rows.shape[1:]) for name, rows in ready.obs.items()}
        assert found == {field.name: (field.dtype, field.shape) for field in fields if field.is_observation}
        assert ready.lanes.max() < group.num_lanes
        assert ready.extra == {}
    world.close()


@pytest.mark.parametrize("which", ["inline", "pool", "pool/threads", "groups", "inline/later", "pool/first"])
@pytest.mark.parametrize("actions", ["tuple", "dict"])
def test_nested_actions_reach_the_env_whole(which: str, actions: str) -> None:
    world = {**WORLDS, **LATER}[which](lanes_of(SCRIPTS, actions=actions))
    _, rows = play(world, 30)
    world.close()
    assert_rows(rows, SCRIPTS)


def test_vector_envs_refuse_nested_actions() -> None:
    with pytest.raises(ConfigError, match=r"Tuple.*a vector env.*Set world.kind to inline"):
        vector(lanes_of(SCRIPTS, actions="tuple"), AutoresetMode.NEXT_STEP)


def test_one_lane_is_never_left_without_a_row(make: Make) -> None:
    scripts: list[Script] = [[(1, "terminated"), (2, "truncated")]]
    world = make(lanes_of(scripts))
    _, rows = play(world, 20)
    assert_rows(rows, scripts)
    world.close()


def test_what_the_replay_draws_is_what_happened(make: Make) -> None:
    world = make(lanes_of(SCRIPTS))
    lanes, rows = play(world, 50)
    world.close()
    replay = Replay(lanes, 64, gamma=0.5, seed=1)
    batch = replay.sample()
    for i in range(64):
        lane, row = int(batch.lane[i]), int(batch.row[i])
        now, after = rows[lane][row], rows[lane][row + 1]
        assert now.action == batch.action[i]
        assert now.obs == (batch.obs[i].numpy().tobytes(),)
        assert after.obs == (batch.next_obs[i].numpy().tobytes(),)
        assert after.reward == batch.reward[i]
        assert batch.discount[i] == (0 if after.terminated else 0.5)
    replay.close()


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.lists(
            st.tuples(st.integers(1, 4), st.sampled_from(["terminated", "truncated", "both"])), min_size=1, max_size=4
        ),
        min_size=1,
        max_size=4,
    ),
    st.booleans(),
)
def test_worlds_agree_on_any_episodes(scripts: list[Script], is_nested: bool) -> None:
    for chosen in [*WORLDS.values(), *SHARED.values(), *LATER.values()]:
        world = chosen(lanes_of(scripts, is_nested=is_nested))
        _, rows = play(world, 12)
        world.close()
        assert_rows(rows, scripts, is_nested)


def test_the_arrays_stay_until_the_next_recv(make: Make) -> None:
    world = make(lanes_of(SCRIPTS))
    for _ in range(10):
        given = world.recv()
        before = copy.deepcopy([(ready.obs, ready.reward, ready.first) for ready in given])
        for ready in given:
            actions = np.full(len(ready.lanes), 4)
            world.send(ready.group, ready.lanes, {"action": actions})
            actions[:] = -1  # the actor may use its array again
        for ready, (obs, reward, first) in zip(given, before, strict=True):
            assert all((obs[name] == rows).all() for name, rows in ready.obs.items())
            assert (reward == ready.reward).all()
            assert (first == ready.first).all()
    world.close()


def test_calls_out_of_turn_are_refused(make: Make) -> None:
    world = make(lanes_of(SCRIPTS))
    given = world.recv()
    with pytest.raises(ValueError, match=r"action"):
        world.recv()  # in place of waiting for ever
    for ready in given:
        world.send(ready.group, ready.lanes, {"action": np.full(len(ready.lanes), 2)})
    with pytest.raises(ValueError, match="does not wait"):
        world.send(0, np.array([0]), {"action": np.array([2])})
    world.close()
    world.close()


def test_inline_lanes_may_be_stepped_apart() -> None:
    world = inline(lanes_of(SCRIPTS))
    rows: list[list[Row]] = [[] for _ in SCRIPTS]
    waiting: dict[int, None] = {}
    random = np.random.default_rng(0)

    def receive() -> None:
        ready = recv(world)
        if ready.ended is not None:
            for i, lane in enumerate(ready.ended.lanes.tolist()):
                ends = bool(ready.ended.terminated[i]), bool(ready.ended.truncated[i])
                rows[lane].append(
                    Row((ready.ended.obs["obs"][i].tobytes(),), float(ready.ended.reward[i]), *ends, None)
                )
        for i, lane in enumerate(ready.lanes.tolist()):
            obs, reward = (ready.obs["obs"][i].tobytes(),), float(ready.reward[i])
            rows[lane].append(Row(obs, reward, False, False, act(lane, len(rows[lane]))))
            waiting[lane] = None

    receive()
    for _ in range(80):
        chosen = random.permutation(list(waiting))[: random.integers(1, 5)]
        for part in np.array_split(chosen, 2):  # sent in pieces
            send(world, part, np.array([rows[lane][-1].action for lane in part], np.int64))
        for lane in chosen.tolist():
            del waiting[lane]
        receive()
    assert_rows(rows, SCRIPTS)
    world.close()


def test_processes_of_gymnasium_are_a_world_too() -> None:
    venv = AsyncVectorEnv(
        lanes_of(SCRIPTS), autoreset_mode=AutoresetMode.SAME_STEP, context="forkserver", shared_memory=False
    )
    try:
        _, rows = play(VectorWorld(venv, 3, "Counting"), 15)
    finally:
        venv.close()
    assert_rows(rows, SCRIPTS)


@pytest.fixture(params=["inline", "pool", "vector"])
def cartpole(request: pytest.FixtureRequest) -> Iterator[World]:
    world = make_world("CartPole-v1", WorldConfig(lanes=5, kind=request.param, max_episode_steps=20), 11)
    yield world
    world.close()


def test_cartpole_rows_obey_its_physics(cartpole: World) -> None:
    """The inline copies and Gymnasium's own vector form: every row follows from the one before."""
    rows: list[list[tuple[Any, float, bool, bool, int | None]]] = [[] for _ in range(5)]
    random = np.random.default_rng(0)
    for _ in range(120):
        ready = recv(cartpole)
        if (end := ready.ended) is not None:
            for i, lane in enumerate(end.lanes.tolist()):
                flags = bool(end.terminated[i]), bool(end.truncated[i])
                rows[lane].append((end.obs["obs"][i].copy(), float(end.reward[i]), *flags, None))
        actions = random.integers(0, 2, len(ready.lanes))
        send(cartpole, ready.lanes, actions)
        for i, lane in enumerate(ready.lanes.tolist()):
            rows[lane].append((ready.obs["obs"][i].copy(), float(ready.reward[i]), False, False, int(actions[i])))
    model: Any = gymnasium.make("CartPole-v1", disable_env_checker=True).unwrapped
    kinds = set()
    for lane in rows:
        began = 0
        for i, (obs, reward, terminated, truncated, _) in enumerate(lane):
            if i == began:
                assert reward == 0
                assert (np.abs(obs) <= 0.05).all()
                continue
            model.reset()
            model.state = lane[i - 1][0].astype(np.float64)
            due, gain, falls, _, _ = model.step(lane[i - 1][4])
            np.testing.assert_allclose(obs, due, atol=1e-5)
            assert (reward, terminated, truncated) == (gain, falls, i - began == 20)
            kinds.add((terminated, truncated))
            if terminated or truncated:
                began = i + 1
    assert {(True, False), (False, True)} <= kinds
    model.close()


def test_the_helpers_of_this_suite_tell_rows_apart() -> None:
    plain = expected_rows(0, SCRIPTS[0], 5)
    assert [row.action is None for row in plain] == [False, False, False, True, False]
    assert [row.terminated for row in plain] == [False, False, False, True, False]
    assert leaves_of(observe(0, 1, 2, 3, True)) != leaves_of(observe(0, 1, 2, 4, True))
    assert plain != expected_rows(1, SCRIPTS[0], 5)
