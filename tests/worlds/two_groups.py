"""A world with two groups of lanes that have other spaces, episodes and tasks: red answers a bit, blue names the largest of three.

`world.kind=two_groups:make_two_groups` trains in it. world.lanes is the number of red lanes; world.kwargs may set `blue_lanes`
(per red lane), `blue_every` (recvs between two rows of a blue lane) and other `names` of the groups.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from freewheel.config import WorldConfig
from freewheel.worlds.inline import InlineWorld
from freewheel.worlds.world import TIMEOUT_S, Array, Columns, Group, Ready

RED, BLUE = 0, 1


class Quiz(gymnasium.Env[Any, Any]):
    """Shows a random question at each step and pays 1 for the right answer to it."""

    shortest, longest = 1, 1

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.length, self.taken = int(self.np_random.integers(self.shortest, self.longest + 1)), 0
        return self.ask(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        reward = float(action == self.answer())
        self.taken += 1
        return self.ask(), reward, self.taken == self.length, False, {}

    def ask(self) -> Array:
        self.asked = self.np_random.random(self.observation_space.shape or (), np.float32)
        return self.asked

    def answer(self) -> int:
        raise NotImplementedError


class Red(Quiz):
    """Is the first of three numbers above a half?"""

    observation_space = spaces.Box(0, 1, (3,), np.float32)
    action_space = spaces.Discrete(2)
    shortest, longest = 4, 8

    def answer(self) -> int:
        return int(self.asked[0] > 0.5)


class Blue(Quiz):
    """Which of the first three of five numbers is the largest?"""

    observation_space = spaces.Box(0, 1, (5,), np.float32)
    action_space = spaces.Discrete(3)
    shortest, longest = 9, 15

    def answer(self) -> int:
        return int(self.asked[:3].argmax())


class GroupsWorld:
    """Each group is an inline world. A group is given at every so many recvs (`every`), or when no other has anything to give."""

    may_rest = True

    def __init__(self, name: str, worlds: Mapping[str, InlineWorld], every: Sequence[int]) -> None:
        self.name, self._worlds, self._every = name, list(worlds.values()), list(every)
        self.groups = tuple(Group(own, w.obs_space, w.action_space, w.num_lanes) for own, w in worlds.items())
        self._turn = 0
        self._open = [world.num_lanes for world in self._worlds]  # lanes of each group that recv is to give

    def recv(self, timeout_s: float = TIMEOUT_S) -> tuple[Ready, ...]:
        self._turn += 1
        groups = [group for group, count in enumerate(self._open) if count]
        if not groups:
            raise ValueError(f"{self.name}: recv() has no lane to wait for. Send an action to a lane first.")
        due = [group for group in groups if self._turn % self._every[group] == 0] or groups
        return tuple(self._take(group, timeout_s) for group in due)

    def _take(self, group: int, timeout_s: float) -> Ready:
        (ready,) = self._worlds[group].recv(timeout_s)
        ready.group = group
        self._open[group] -= len(ready.lanes)
        return ready

    def send(self, group: int, lanes: Array, actions: Columns) -> None:
        self._worlds[group].send(0, lanes, actions)
        self._open[group] += len(lanes)

    def close(self) -> None:
        for world in self._worlds:
            world.close()

    def state(self) -> dict[str, Array]:
        kept = {
            f"{group.name}.{name}": rows
            for group, world in zip(self.groups, self._worlds, strict=True)
            for name, rows in world.state().items()
        }
        return {**kept, "turn": np.array(self._turn)}

    def set_state(self, state: dict[str, Array] | None) -> list[int]:
        exact: list[int] = []
        first = 0
        for group, world in zip(self.groups, self._worlds, strict=True):
            start = f"{group.name}."
            own = {name.removeprefix(start): rows for name, rows in (state or {}).items() if name.startswith(start)}
            exact += [first + lane for lane in world.set_state(own or None)]
            first += group.num_lanes
        self._turn = 0 if state is None else int(state["turn"])
        self._open = [world.num_lanes for world in self._worlds]
        return exact


def make_two_groups(env: Any, config: WorldConfig, seed: int, *, first_lane: int = 0) -> GroupsWorld:
    """As `make_world` calls it; the env's name is of no importance."""
    given = {"blue_lanes": 1, "blue_every": 2, "names": ["red", "blue"], **json.loads(config.kwargs)}
    lanes, per_lane = config.lanes, given["blue_lanes"]
    red = InlineWorld([Red() for _ in range(lanes)], seed, "red", lanes=range(first_lane, first_lane + lanes))
    first_blue, num_blue = first_lane * per_lane, lanes * per_lane
    # Another seed: red and blue lanes of the same number would see the same chance.
    own = range(first_blue, first_blue + num_blue)
    blue = InlineWorld([Blue() for _ in own], seed + 1, "blue", lanes=own)
    world = GroupsWorld("two groups", {"red": red, "blue": blue}, (1, given["blue_every"]))
    world.groups = tuple(replace(group, name=name) for group, name in zip(world.groups, given["names"], strict=True))
    return world
