"""Envs whose every row is known beforehand, and the actor that writes what a world gives."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from freewheel.memory.lanes import Lanes, Writer
from freewheel.spec import RowSpec, flatten
from freewheel.worlds.world import Columns, Ended, Obs, World

Script = Sequence[tuple[int, str]]  # length of each episode in turn, and how it ends
SCRIPTS: list[Script] = [
    [(3, "terminated"), (1, "truncated"), (2, "both"), (1, "terminated"), (1, "terminated")],
    [(1, "terminated")],
    [(5, "truncated"), (4, "terminated")],
    [(2, "terminated"), (2, "truncated")],
]
NESTED = spaces.Dict(
    {
        "where": spaces.Box(-np.inf, np.inf, (2,), np.float32),
        "bag": spaces.Tuple((spaces.Discrete(1000, start=5), spaces.MultiBinary(3))),
        "image": spaces.Box(0, 255, (2, 3), np.uint8),
        "precise": spaces.Box(-np.inf, np.inf, (), np.float64),
    }
)


BOX = spaces.Box(1, 9, (2,), np.float32)
KEYS = spaces.Tuple((spaces.Discrete(9, start=1), spaces.MultiDiscrete([10, 10])))
ACTIONS: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(9, start=1),
    "box": BOX,
    "tuple": spaces.Tuple((spaces.Discrete(9, start=1), BOX)),
    "dict": spaces.Dict({"push": BOX, "keys": KEYS}),
}


class Row(NamedTuple):
    obs: tuple[bytes, ...]
    reward: float
    terminated: bool
    truncated: bool
    action: int | None  # None in an episode's last row


class Counting(gymnasium.Env[Any, Any]):
    """Shows its lane, episode, step and last action; the reward is made of all of them."""

    def __init__(self, lane: int, script: Script, is_nested: bool = False, actions: str = "discrete") -> None:
        self.lane, self.script, self.is_nested = lane, script, is_nested
        self.observation_space = NESTED if is_nested else spaces.Box(-np.inf, np.inf, (4,), np.float32)
        self.action_space = ACTIONS[actions]
        self.episode, self.count, self.action = -1, 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.count, self.action = self.episode + 1, 0, 0
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        length, how = self.script[self.episode % len(self.script)]
        assert self.count < length, "stepped after the end"
        parts = list(flatten("action", self.action_space, action).values())
        self.action = int(parts[0].flat[0])
        assert all((part == self.action).all() for part in parts), action
        self.count += 1
        last = self.count == length
        ends = (last and how in ("terminated", "both"), last and how in ("truncated", "both"))
        for part in parts:
            part[...] = 0  # an env may write into what it was given
        return self.observe(), reward_of(self.lane, self.episode, self.count, self.action), *ends, {}

    def observe(self) -> Any:
        return observe(self.lane, self.episode, self.count, self.action, self.is_nested)


def reward_of(lane: int, episode: int, count: int, action: int) -> float:
    return lane + 10 * count + 0.5 * action + 1000 * episode


def observe(lane: int, episode: int, count: int, action: int, is_nested: bool) -> Any:
    if not is_nested:
        return np.array([lane, episode, count, action], np.float32)
    return {
        "where": np.array([lane, episode], np.float32),
        "bag": (np.int64(count + 5), np.array([action & 1, action >> 1 & 1, action >> 2 & 1], np.int8)),
        "image": np.full((2, 3), action, np.uint8),
        "precise": np.float64(episode + count / 7),
    }


def leaves_of(obs: Any) -> tuple[bytes, ...]:
    if isinstance(obs, dict):
        return tuple(part for _, value in sorted(obs.items()) for part in leaves_of(value))
    if isinstance(obs, tuple):
        return tuple(part for value in obs for part in leaves_of(value))
    return (np.asarray(obs).tobytes(),)


def act(lane: int, row: int) -> int:
    """Any rule that depends on the row will do."""
    return 1 + (3 * lane + row) % 8


def expected_rows(lane: int, script: Script, count: int, is_nested: bool = False) -> list[Row]:
    rows: list[Row] = []
    episode = 0
    while len(rows) < count:
        length, how = script[episode % len(script)]
        action = 0
        for i in range(length + 1):
            obs = leaves_of(observe(lane, episode, i, action, is_nested))
            reward = reward_of(lane, episode, i, action) if i else 0.0
            over = i == length
            action = act(lane, len(rows))
            ends = (over and how in ("terminated", "both"), over and how in ("truncated", "both"))
            rows.append(Row(obs, reward, *ends, None if over else action))
        episode += 1
    return rows[:count]


def play(world: World, num_recvs: int, lane_rows: int = 1000) -> tuple[Lanes, list[list[Row]]]:
    """Acts in the world and writes the rows the way an actor does; gives them by lane as well, counted over all groups."""
    (spec,) = {RowSpec.of(group.obs_space, group.action_space) for group in world.groups}
    firsts = [0, *itertools.accumulate(group.num_lanes for group in world.groups)]
    lanes = Lanes(spec, firsts.pop(), lane_rows)
    writer = lanes.writer()
    rows: list[list[Row]] = [[] for _ in range(lanes.num_lanes)]
    for _ in range(num_recvs):
        given = world.recv()
        assert len({ready.group for ready in given}) == len(given) > 0
        for ready in given:
            first = firsts[ready.group]
            if ready.ended is not None:
                write_ends(ready.ended, first, rows, writer)
            assert len(ready.lanes) > 0
            own = ready.lanes + first
            chosen = [act(lane, len(rows[lane])) for lane in own.tolist()]
            actions = columns_of(spec, chosen)
            none = np.zeros(len(chosen), np.bool_)
            world.send(ready.group, ready.lanes, actions)
            writer.append(own, {**ready.obs, **actions}, ready.reward, none, none)
            for i, lane in enumerate(own.tolist()):
                begins = not rows[lane] or rows[lane][-1].action is None
                assert ready.first[i] == begins
                rows[lane].append(Row(row_of(ready.obs, i), float(ready.reward[i]), False, False, chosen[i]))
    return lanes, rows


def write_ends(end: Ended, first: int, rows: list[list[Row]], writer: Writer) -> None:
    """The final rows of a group whose lanes count from `first` on."""
    own = end.lanes + first
    idle = columns_of(writer.spec, [0] * len(own))
    writer.append(own, {**end.obs, **idle}, end.reward, end.terminated, end.truncated)
    for i, lane in enumerate(own.tolist()):
        flags = bool(end.terminated[i]), bool(end.truncated[i])
        rows[lane].append(Row(row_of(end.obs, i), float(end.reward[i]), *flags, None))


def columns_of(spec: RowSpec, chosen: Sequence[int]) -> Columns:
    """Actions that have the same number in every part."""
    columns = {}
    for field in spec.fields:
        if not field.is_observation:
            columns[field.name] = np.empty((len(chosen), *field.shape), field.dtype)
            columns[field.name].T[...] = chosen
    return columns


def row_of(obs: Obs, i: int) -> tuple[bytes, ...]:
    return tuple(rows[i].tobytes() for rows in obs.values())
