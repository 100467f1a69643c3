"""Our side of `bench worlds`, in processes as every peer's: one kind of world, opened and stepped on demand."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from freewheel.bench.peers.world_envs import IDS, make
from freewheel.config import WorldConfig
from freewheel.worlds.make import choose_world, make_world
from freewheel.worlds.pool import PoolWorld
from freewheel.worlds.world import World

WARM_SHARE = 0.2


def handlers(kind: str) -> Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]]:
    """What `peers/worlds_worker.py` answers for worlds of this kind; the one that was opened is closed with its process."""
    player: Player | None = None

    def open_world(message: dict[str, Any]) -> dict[str, Any]:
        nonlocal player
        world, reason = open_ours(kind, message["env"], message["lanes"])
        player = Player(world)
        return {"reason": reason}

    def step(message: dict[str, Any]) -> dict[str, Any]:
        assert player is not None
        return {"rows_per_s": player.rows_per_s(message["seconds"])}

    return {"open": open_world, "step": step}


def open_ours(kind: str, env: str, lanes: int) -> tuple[World, str]:
    """The world, and why it is the one, where that was measured."""
    what: Any = IDS.get(env) or partial(make, env)
    pictures: dict[str, Any] = {"image_size": 84, "grey": True, "skip": 4} if env == "atari" else {}
    if env == "atari" and kind == "vector":
        pictures["kwargs"] = '{"num_threads": 0}'  # as many as it takes by itself
    config = WorldConfig(lanes=lanes, kind=kind, **pictures)  # type: ignore[arg-type]
    choice = choose_world(what, config)
    return make_world(what, choice.config, 0), choice.reason


class Player:
    """Steps a world with random actions. Between two windows it is idle: what is under way would disturb the others."""

    def __init__(self, world: World) -> None:
        self.world = world
        space: Any = world.action_space
        self._actions = np.random.default_rng(0).integers(space.start, space.start + space.n, (64, world.num_lanes))
        self._count = 0
        self._held: list[Any] = []  # lanes that wait for an action

    def rows_per_s(self, seconds: float) -> float:
        """Steps that were completed in a second; the first ones do not count."""
        for lanes in self._held:
            self._answer(lanes)
        self._held = []
        clock = time.perf_counter
        self._play(clock() + WARM_SHARE * seconds)
        began_s = clock()
        rows = self._play(began_s + seconds)
        figure = rows / (clock() - began_s)
        if isinstance(self.world, PoolWorld):
            while sum(map(len, self._held)) < self.world.num_lanes:
                self._held.append(self.world.recv().lanes)
        return figure

    def _play(self, until_s: float) -> int:
        rows, clock = 0, time.perf_counter
        while clock() < until_s:
            lanes = self.world.recv().lanes
            rows += len(lanes)  # the rows that ended are as many as the first ones, which are no steps
            self._answer(lanes)
        return rows

    def _answer(self, lanes: Any) -> None:
        self._count += 1
        self.world.send(lanes, self._actions[self._count % 64, : len(lanes)])
