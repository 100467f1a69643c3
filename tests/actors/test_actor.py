"""An actor's turn: the rows it writes, the steps it counts, the actions it takes."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from freewheel.actors.actor import Actor, GroupActor
from freewheel.actors.value_policy import Explorer, ValuePolicy
from freewheel.algos.make import make_algo
from freewheel.config import ExploreConfig, NetConfig, QConfig, WorldConfig, find_algo
from freewheel.contracts import Spaces
from freewheel.memory.counts import RunCounts
from freewheel.memory.lanes import Lanes
from freewheel.memory.replay import Replay
from freewheel.report.phases import PHASES
from freewheel.spec import RowSpec
from freewheel.worlds.make import make_world


class Count(gymnasium.Env[Any, Any]):
    """Shows the step; the reward is 10 times it; three steps an episode. Actions are 5, 6, 7."""

    observation_space = spaces.Box(0, 100, (1,), np.float32)
    action_space = spaces.Discrete(3, start=5)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.at = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert 5 <= action <= 7
        self.at += 1
        return np.full(1, self.at, np.float32), 10.0 * self.at, self.at == 3, False, {}


class Fixed:
    """Weights that say a version and never change."""

    version = 0

    def fetch(self, step: int) -> bool:
        return False


class Open:
    """A pace that holds nobody; it keeps what it was shown."""

    def __init__(self) -> None:
        self.is_open, self.shown = True, 0

    def may_answer(self, pending: int) -> bool:
        return self.is_open

    def show(self, n: int) -> None:
        self.shown += n


def algo_of(config: WorldConfig, epsilon: float = 1.0, q: QConfig | None = None, name: str = "dqn") -> Any:
    explore = ExploreConfig(schedule="constant", end=epsilon)
    more = {"q": q or QConfig(), "explore": explore, "net": NetConfig(hidden=(8,)), "world": config}
    settings = find_algo(name).Settings("test", algo=name, **more)
    return make_algo(settings, Spaces(Count.observation_space, Count.action_space, config.lanes))


def make(config: WorldConfig, epsilon: float, q: QConfig | None = None) -> tuple[Actor, Lanes]:
    world = make_world(Count, config, seed=0)
    (group,) = world.groups
    algo = algo_of(config, epsilon, q)
    policy = algo.policy(algo.net.eval(), lambda stream: 1, range(config.lanes), config.lanes)
    lanes = Lanes(RowSpec.of(group.obs_space, group.action_space), group.num_lanes, 100)
    counts = RunCounts(1).of(0)
    acting = GroupActor(0, group, policy, Fixed(), lanes, lanes.writer(), counts, Open(), config)
    return Actor(world, [acting]), lanes


def policy_of(actor: Actor) -> ValuePolicy:
    policy = actor.groups[0].policy
    assert isinstance(policy, ValuePolicy)
    return policy


def test_rows_steps_and_returns() -> None:
    actor, lanes = make(WorldConfig(lanes=2), 1.0)
    (group,) = actor.groups
    steps = []
    for turn in range(9):
        group.weights.version = turn  # type: ignore[misc]
        before = group.counts.steps
        assert actor.turn()
        steps.append(group.counts.steps - before)
    assert steps == [0, 2, 2, 2, 2, 2, 2, 2, 2]
    assert group.num_steps == group.counts.run_steps == group.pace.shown == 16
    assert [(of, e.lane, e.ret, e.length, e.step) for of, e in actor.take_finished()] == [
        (0, 0, 60, 3, 6),
        (0, 1, 60, 3, 6),
        (0, 0, 60, 3, 12),
        (0, 1, 60, 3, 12),
    ]
    assert actor.take_finished() == []
    replay = Replay(lanes, 16, gamma=0.5)
    batch = replay.sample()
    for obs, next_obs, reward, discount in zip(
        *(batch[name].flatten().tolist() for name in ("obs", "next_obs", "reward", "discount")), strict=True
    ):
        assert next_obs == obs + 1
        assert reward == 10 * next_obs
        assert discount == (0.0 if next_obs == 3 else 0.5)
    assert set(batch.action.tolist()) <= {5, 6, 7}


class Cutting:
    """Inline envs, one of which is replaced by another before the outcome of its newest action comes, as a pool's is with its worker."""

    def __init__(self, inner: Any, lane: int, at: int) -> None:
        self.inner, self.lane, self.left = inner, lane, at

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def recv(self) -> Any:
        (ready,) = self.inner.recv()
        self.left -= 1
        if self.left == 0:
            self.inner._envs[self.lane].at = 0
            ready.obs["obs"][self.lane], ready.reward[self.lane], ready.first[self.lane] = 0, 0, True
        return (ready,)


@pytest.mark.parametrize("at", [2, 3])  # the newest action is the episode's first, or its second
def test_an_episode_that_is_cut_leaves_no_row_that_nobody_saw(at: int) -> None:
    actor, lanes = make(WorldConfig(lanes=2), 1.0)
    (group,) = actor.groups
    actor.world = Cutting(actor.world, 1, at)
    for _ in range(9):
        assert actor.turn()
    assert group.counts.steps == 15, "the step whose outcome is unknown does not count"
    assert {(episode.ret, episode.length) for _, episode in actor.take_finished()} == {(60, 3)}
    for n_step in (1, 3):
        replay = Replay(lanes, 16, n_step=n_step, gamma=0.5, seed=1)
        columns = ("lane", "row", "obs", "next_obs", "reward", "steps", "discount")
        batches = [replay.sample() for _ in range(8)]
        found = {row for batch in batches for row in zip(*(batch[c].flatten().tolist() for c in columns), strict=True)}
        assert {lane for lane, *_ in found} == {0, 1}
        for lane, row, obs, next_obs, reward, steps, discount in found:
            assert not (lane == 1 and row == at - 2), "its outcome is not known"
            assert next_obs == obs + steps
            assert reward == sum(10 * (obs + 1 + i) * 0.5**i for i in range(int(steps)))
            assert discount == (0.0 if next_obs == 3 else 0.5**steps)


def test_an_answer_that_the_pace_holds_back_is_owed_and_given_later() -> None:
    actor, lanes = make(WorldConfig(lanes=2), 1.0)
    (group,) = actor.groups
    actor.turn()
    group.pace.is_open = False
    assert not actor.turn()
    assert actor.waiting
    assert group.pace.shown == 2  # the learner may wait for just that
    heads = [lanes.core.head(lane) for lane in range(2)]
    assert not actor.turn()
    assert (group.counts.steps, group.pace.shown) == (2, 2)  # nothing more is received meanwhile
    assert [lanes.core.head(lane) for lane in range(2)] == heads == [1, 1]
    group.pace.is_open = True
    assert actor.turn()
    assert not actor.waiting
    assert [lanes.core.head(lane) for lane in range(2)] == [2, 2]
    assert (group.counts.steps, group.pace.shown) == (2, 2)


def test_rewards_are_scaled_and_clipped_for_learning_only() -> None:
    actor, lanes = make(WorldConfig(lanes=1, reward_scale=0.1, reward_clip=2.0), 1.0)
    for _ in range(20):
        actor.turn()
    assert {episode.ret for _, episode in actor.take_finished()} == {60.0}
    assert set(Replay(lanes, 16).sample().reward.tolist()) == {1.0, 2.0}


def test_rows_that_explore_try_and_the_others_follow_the_network() -> None:
    actor, _ = make(WorldConfig(lanes=4), 0.5)
    obs = {"obs": np.linspace(0, 3, 40, dtype=np.float32)[:, None]}
    best = policy_of(actor).greedy(obs)["action"]
    explores, tried = np.arange(40) % 2 == 0, np.arange(40) % 3
    taken = policy_of(actor).act(obs, np.arange(40), explores, tried)
    assert best.dtype == taken.dtype == np.int64
    np.testing.assert_array_equal(taken[explores], tried[explores] + 5)
    np.testing.assert_array_equal(taken[~explores], best[~explores])


def test_noise_changes_what_is_chosen_unless_greedy() -> None:
    actor, _ = make(WorldConfig(lanes=1), 0.0, QConfig(noisy=True, noisy_sigma=5.0))
    obs = {"obs": np.linspace(-3, 3, 50, dtype=np.float32)[:, None]}
    values = [policy_of(actor).values(obs, np.arange(50)) for _ in range(2)]
    assert not torch.equal(values[0], values[1])
    greedy = [policy_of(actor).values(obs) for _ in range(2)]
    assert torch.equal(greedy[0], greedy[1])


def test_fractions_of_a_lane_do_not_depend_on_its_company() -> None:
    algo = algo_of(WorldConfig(), q=QConfig(num_act_taus=4), name="iqn")
    net = algo.net.eval()

    def policy(num_lanes: int, first_lane: int = 0) -> ValuePolicy:
        explorer = Explorer(algo.config.explore, num_lanes, 3, seed=1)
        return ValuePolicy(net, algo, explorer, np.int64, 1, num_lanes, first_lane)

    together, apart = policy(3), policy(3)
    obs = {"obs": np.ones((3, 1), np.float32)}
    every, yes, no = np.arange(3), np.ones(3, bool), np.zeros(3, bool)
    together.act(obs, every, yes, every)  # all explore: the network is not asked, and the step counts all the same
    first, second = (together.values(obs, every).numpy() for _ in range(2))
    assert not np.array_equal(first, second)
    for lane in (2, 0):
        alone = np.array([lane])
        apart.act({"obs": obs["obs"][:1]}, alone, yes[:1], alone)
        for expected in (first, second):
            np.testing.assert_allclose(apart.values({"obs": obs["obs"][:1]}, alone)[0], expected[lane], rtol=1e-5)
    other = policy(1, first_lane=2)
    other.act({"obs": obs["obs"][:1]}, np.array([0]), no[:1], every[:1])
    np.testing.assert_allclose(other.values({"obs": obs["obs"][:1]}, np.array([0]))[0], first[2], rtol=1e-5)


def test_the_account_of_a_turn_has_its_fetch() -> None:
    actor, _ = make(WorldConfig(lanes=2), 0.5)
    phases: list[int] = []
    actor.groups[0]._enter = phases.append
    actor.turn()
    assert [PHASES[phase] for phase in phases] == ["write", "fetch", "infer", "write", "env"]
