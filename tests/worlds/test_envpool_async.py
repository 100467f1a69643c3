"""Lanes that come as they are done: the rows are those of the envs, and every lane comes again."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from counting import SCRIPTS, Counting, Script, expected_rows, play
from fake_envpool import FakePool
from gymnasium.vector import AutoresetMode
from sole import recv, send

import freewheel
from freewheel.config import WorldConfig
from freewheel.errors import ConfigError, EnvError
from freewheel.worlds.envpool_async import AsyncVectorWorld
from freewheel.worlds.make import env_name, make_world
from freewheel.worlds.vector import VectorWorld


def pool(batch_size: int, scripts: list[Script] = SCRIPTS, seed: int = 0, **options: Any) -> FakePool:
    makes = [partial(Counting, lane, script, **options) for lane, script in enumerate(scripts)]
    return FakePool(makes, batch_size, seed)


@pytest.mark.parametrize("batch_size", [1, 2, 3, 4])
@pytest.mark.parametrize("options", [{}, {"is_nested": True}, {"actions": "box"}], ids=["plain", "nested", "box"])
def test_rows_are_those_of_the_envs(batch_size: int, options: dict[str, Any]) -> None:
    world = AsyncVectorWorld(pool(batch_size, **options), 3, "Pool")
    _, rows = play(world, 200)
    for lane, script in enumerate(SCRIPTS):
        assert len(rows[lane]) > 30
        assert rows[lane] == expected_rows(lane, script, len(rows[lane]), options.get("is_nested", False))
    world.close()
    world.close()
    assert world.state() is None


def test_where_all_that_came_has_ended_it_waits_for_more() -> None:
    scripts: list[Script] = [
        [(1, "terminated")]
    ] * 5  # two batches and more, so that several may end before one goes on
    for seed in range(5):
        world = AsyncVectorWorld(pool(2, scripts, seed), 3, "Pool")
        _, rows = play(world, 40)
        for lane in range(5):
            assert rows[lane] == expected_rows(lane, scripts[lane], len(rows[lane]))
        world.close()


def test_the_arrays_stay_until_the_next_recv_and_actions_are_taken_over() -> None:
    world = AsyncVectorWorld(pool(2, actions="box"), 3, "Pool")
    for _ in range(30):
        ready = recv(world)
        before = [ready.obs["obs"].copy(), ready.reward.copy(), ready.first.copy()]
        for part in np.array_split(ready.lanes, 2):  # sent in pieces
            actions = np.full((len(part), 2), 4, np.float32)
            send(world, part, actions)
            actions[:] = -1  # the env would refuse it
        after = [ready.obs["obs"], ready.reward, ready.first]
        assert all((one == two).all() for one, two in zip(before, after, strict=True))
    world.close()


def test_calls_out_of_turn_are_refused() -> None:
    world = AsyncVectorWorld(pool(2), 3, "Pool")
    ready = recv(world)
    send(world, ready.lanes[:1], np.array([2]))
    with pytest.raises(ValueError, match=rf"lanes \[{ready.lanes[1]}\] have no action"):
        recv(world)
    with pytest.raises(ValueError, match="does not wait"):
        send(world, ready.lanes[:1], np.array([2]))


class Broken(Counting):
    """Its third step gives what no network can take, or raises."""

    def __init__(self, lane: int, script: Script, how: str) -> None:
        super().__init__(lane, script)
        self.how = how

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        if self.lane == 1 and self.count == 3:
            if self.how == "raise":
                raise RuntimeError("motor broke")
            if self.how == "exit":
                raise SystemExit(0)
            return np.full(4, np.nan, np.float32) if self.how == "obs" else obs, np.nan, *rest
        return obs, reward, *rest


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("obs", r"Pool \(lane 1\) gave.* at step 3 of the episode with seed 42"),
        ("reward", r"Pool \(lane 1\) gave the reward nan at step 3 of the episode with seed 42"),
        ("raise", r"Pool \(all lanes\) raised RuntimeError: motor broke in recv\(\)"),
        pytest.param("exit", r"Pool \(all lanes\) raised SystemExit: 0 in recv\(\)", id="f23"),
    ],
)
def test_errors_name_the_lane_and_its_step(how: str, message: str) -> None:
    makes = [partial(Broken, lane, [(9, "terminated")], how) for lane in range(5)]
    world = AsyncVectorWorld(FakePool(makes, 2), 3, "Pool")
    with pytest.raises(EnvError, match=message):
        play(world, 60)


def cartpole() -> Any:
    return gymnasium.make("CartPole-v1")


def some(num_envs: int, seed: int = 42) -> FakePool:
    return FakePool([cartpole] * num_envs, max(num_envs // 2, 1), seed)


def all_of_them(num_envs: int, seed: int = 42) -> FakePool:
    return FakePool([cartpole] * num_envs, num_envs, seed)


def unseeded(num_envs: int) -> FakePool:
    return some(num_envs)


def unseeded_whole(num_envs: int) -> FakePool:
    return all_of_them(num_envs)


def deaf(num_envs: int, seed: int) -> FakePool:
    """Takes a seed and does not pass it on."""
    return some(num_envs)


def wrapped(num_envs: int) -> Any:
    return gymnasium.wrappers.vector.RecordEpisodeStatistics(some(num_envs))


def test_it_is_chosen_where_a_batch_is_smaller_than_the_lanes() -> None:
    world = make_world(some, WorldConfig(lanes=6), 0)
    assert isinstance(world, AsyncVectorWorld)
    assert len(recv(world).lanes) == 3
    world.close()
    assert type(make_world(all_of_them, WorldConfig(lanes=6), 0)) is VectorWorld
    env = some(4)
    world = make_world(env, WorldConfig(lanes=4), 0)
    assert isinstance(world, AsyncVectorWorld)
    world.close()
    assert env.closed_times == 0, "an object is its owner's to close"


def first_rows(seed: int, first_lane: int = 0) -> dict[int, bytes]:
    """The first observation of each lane."""
    world, found = make_world(some, WorldConfig(lanes=4), seed, first_lane=first_lane), dict[int, bytes]()
    while len(found) < 4:
        ready = recv(world)
        for i, lane in enumerate(ready.lanes.tolist()):
            found.setdefault(lane, ready.obs["obs"][i].tobytes())
        send(world, ready.lanes, np.zeros(len(ready.lanes), np.int64))
    world.close()
    return found


def test_the_seed_of_the_run_and_the_lanes_of_an_actor_choose_its_episodes() -> None:
    assert first_rows(3) == first_rows(3)
    assert not set(first_rows(3).values()) & set(first_rows(4).values())
    assert not set(first_rows(3).values()) & set(first_rows(3, first_lane=4).values()), "two actors play the same"


@pytest.mark.parametrize("make", [unseeded, unseeded_whole, deaf])
def test_a_function_whose_envs_cannot_be_seeded_is_refused(make: Any) -> None:
    with pytest.raises(ConfigError, match=r"seed=42, whatever the run's seed.*parameter seed.*envpool.make"):
        make_world(make, WorldConfig(lanes=4), 3)
    with pytest.raises(ConfigError, match=r"Leave seed out of world.kwargs"):
        make_world(some, WorldConfig(lanes=4, kwargs='{"seed": 7}'), 3)


def test_an_object_keeps_the_seed_that_it_was_made_with_and_the_run_says_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    settings: dict[str, Any] = {"log.tensorboard": False, "log.folder": str(tmp_path), "replay.warmup_rows": 150}
    freewheel.train(some(4, 9), steps=200, preset="none", settings=settings)
    assert "made with seed=9" in capfd.readouterr().err


def test_an_object_whose_spec_has_no_id_goes_by_its_class() -> None:
    env = some(4)
    env.spec = object()  # type: ignore[assignment]  # EnvPool has one of its own
    assert env_name(env) == "FakePool"


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"RecordEpisodeStatistics around it.*without batch_size"):
        make_world(wrapped, WorldConfig(lanes=4), 0)
    env = some(4)
    env.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # type: ignore[misc]
    with pytest.raises(ConfigError, match="NEXT_STEP"):
        make_world(env, WorldConfig(lanes=4), 0)


@pytest.mark.parametrize("algo", ["dqn", "ppo"])
@pytest.mark.parametrize("runtime", ["sequential", "local"])
def test_it_is_trained_on(algo: str, runtime: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"runtime": runtime, "world.lanes": 4, "eval_episodes": 3, "log.tensorboard": False}
    settings |= {"rollout.rows": 32} if algo == "ppo" else {"replay.warmup_rows": 150}
    settings["log.folder"] = str(tmp_path)
    run = freewheel.train(some, algo=algo, steps=400, preset="none", settings=settings, is_quiet=True)
    assert run.result["runtime"] == runtime
    assert run.result["steps"] >= 400
    assert run.result["eval_return_mean"] > 5
    assert len(run.episodes) > 5
