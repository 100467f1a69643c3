"""The loss of a life ends an episode for learning, and for nobody else: the game goes on and its return is that of all lives."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from sole import recv, send

from freewheel.config import WorldConfig
from freewheel.errors import ConfigError
from freewheel.report.episodes import Episode, Episodes
from freewheel.worlds.inline import InlineWorld
from freewheel.worlds.make import make_env, make_world
from freewheel.worlds.world import World

LOSSES = (3, 5)  # steps at which a life is lost; the game ends at OVER
OVER = 8


class Lives(gymnasium.Env[Any, Any]):
    """Shows its step; every step is worth 1."""

    observation_space = spaces.Box(0, 255, (4, 4), np.uint8)
    action_space = spaces.Discrete(2)

    def __init__(self, tells: bool = True) -> None:
        self.tells = tells

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.count = 0
        return self._look()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        obs, info = self._look()
        return obs, 1.0, self.count == OVER, False, info

    def _look(self) -> tuple[Any, dict[str, Any]]:
        lives = 3 - sum(self.count >= loss for loss in LOSSES) - (self.count >= OVER)
        return np.full((4, 4), self.count, np.uint8), {"lives": lives} if self.tells else {}


def play(world: World, num_recvs: int, action: int = 0) -> tuple[list[tuple[int, bool, bool, bool]], list[Episode]]:
    """Rows of lane 0 as (what is seen, first, last, terminated), and the episodes of all lanes."""
    count = Episodes(world.num_lanes)
    rows: list[tuple[int, bool, bool, bool]] = []
    episodes: list[Episode] = []
    for _ in range(num_recvs):
        ready = recv(world)
        if (end := ready.ended) is not None:
            for i in np.flatnonzero(end.lanes == 0):
                rows.append((int(end.obs["obs"][i].flat[0]), False, True, bool(end.terminated[i])))
        for i in np.flatnonzero(ready.lanes == 0):
            rows.append((int(ready.obs["obs"][i].flat[0]), bool(ready.first[i]), False, False))
        episodes += count.add(ready.lanes, ready.reward, ready.first, ready.ended)
        send(world, ready.lanes, np.full(len(ready.lanes), action))
    world.close()
    return rows, episodes


@pytest.mark.parametrize("kind", ["inline", "pool"])
def test_rows_end_with_each_life_and_returns_with_the_game(kind: str) -> None:
    config = WorldConfig(lanes=2, kind=kind, episodic_life=True, workers=2, threads=1, min_ready=2)
    rows, episodes = play(make_world(Lives, config, 0), 2 * OVER + 1)
    game = [
        (0, True),
        (1, False),
        (2, False),
        (3, None),
        (3, True),
        (4, False),
        (5, None),
        (5, True),
        (6, False),
        (7, False),
        (8, None),
    ]
    due = [(seen, bool(first), first is None, first is None) for seen, first in game]
    assert rows[: 2 * len(due)] == due * 2
    assert [(episode.ret, episode.length) for episode in episodes] == [(OVER, OVER)] * 4


def test_without_it_a_life_is_no_end() -> None:
    rows, episodes = play(make_world(Lives, WorldConfig(lanes=1, kind="inline"), 0), OVER + 1)
    assert [row[2] for row in rows] == [False] * OVER + [True, False]
    assert [episode.ret for episode in episodes] == [OVER]


def test_a_lane_resumes_in_the_middle_of_a_game() -> None:
    def make() -> World:
        return make_world(Lives, WorldConfig(lanes=1, kind="inline", episodic_life=True), 0)

    one, other = make(), make()
    assert isinstance(one, InlineWorld)
    for _ in range(5):
        send(one, recv(one).lanes, np.zeros(1, np.int64))
    assert other.set_state(one.state()) == [0]
    mine, theirs = recv(one), recv(other)
    assert mine.ended is not None
    assert theirs.ended is not None
    assert mine.ended.obs["obs"].tolist() == theirs.ended.obs["obs"].tolist() == np.full((1, 4, 4), 5).tolist()
    one.close()
    other.close()


def test_lives_must_be_told() -> None:
    env = make_env(lambda: Lives(tells=False), WorldConfig(episodic_life=True))
    with pytest.raises(ConfigError, match=r"gives no info\['lives'\]"):
        env.reset(seed=0)


def test_both_forms_of_atari_end_the_same_lives() -> None:
    pytest.importorskip("ale_py")
    config = WorldConfig(
        lanes=1,
        image_size=84,
        grey=True,
        skip=4,
        episodic_life=True,
        fire_reset=True,
        kind="inline",
        kwargs=json.dumps({"repeat_action_probability": 0.0}),
    )
    found = [
        play(make_world("ALE/Breakout-v5", replace(config, kind=kind), 3), 260, 1) for kind in ("inline", "vector")
    ]
    ends = [[i for i, row in enumerate(rows) if row[2]] for rows, _ in found]
    assert ends[0] == ends[1]
    assert len(ends[0]) >= 5
    games = [[(episode.ret, episode.length) for episode in episodes] for _, episodes in found]
    assert games[0] == games[1]
    assert 1 <= len(games[0]) < len(ends[0])
