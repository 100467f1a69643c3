"""One kind of world behind JSON lines: `python -m freewheel.bench.worlds_worker pool`.

{"op": "open", "env": "cartpole", "lanes": 128} -> {"reason": ...}, why auto chose the world
{"op": "step", "seconds": 0.5} -> {"rows_per_s": ...}
"""

from __future__ import annotations

import importlib.metadata
import sys
import time
from functools import partial
from typing import Any

import numpy as np

from freewheel.bench.worker.serve import Message, die_with_parent, serve
from freewheel.bench.worker.world_envs import IDS, make
from freewheel.config import WorldConfig
from freewheel.worlds.choose import choose_world
from freewheel.worlds.make import make_world
from freewheel.worlds.pool import PoolWorld
from freewheel.worlds.world import World, sole_group

WARM_SHARE = 0.2


def main() -> None:
    """The world that was opened is closed with its process."""
    die_with_parent()
    kind = sys.argv[1]
    player: Player | None = None

    def open_world(message: Message) -> Message:
        nonlocal player
        world, reason = open_kind(kind, message["env"], message["lanes"])
        player = Player(world)
        return {"reason": reason}

    def step(message: Message) -> Message:
        assert player is not None
        return {"rows_per_s": player.rows_per_s(message["seconds"])}

    version = importlib.metadata.version("freewheel")
    serve({"ready": kind, "version": version}, {"open": open_world, "step": step})


def open_kind(kind: str, env: str, lanes: int) -> tuple[World, str]:
    """The world, and why it is the one, where that was measured."""
    what: Any = IDS.get(env) or partial(make, env)
    pictures: dict[str, Any] = {"image_size": 84, "grey": True, "skip": 4} if env == "atari" else {}
    if env == "atari" and kind == "vector":
        pictures["kwargs"] = '{"num_threads": 0}'  # as many as it takes by itself
    config = WorldConfig(lanes=lanes, kind=kind, **pictures)
    choice = choose_world(what, config)
    return make_world(what, choice.chosen, 0), choice.reason


class Player:
    """Steps a world with random actions. Between two windows it is idle: what is under way would disturb the others."""

    def __init__(self, world: World) -> None:
        self.world = world
        group = sole_group(world)
        space: Any = group.action_space
        self._num_lanes = group.num_lanes
        self._actions = np.random.default_rng(0).integers(space.start, space.start + space.n, (64, group.num_lanes))
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
            while sum(map(len, self._held)) < self._num_lanes:
                (ready,) = self.world.recv()
                self._held.append(ready.lanes)
        return figure

    def _play(self, until_s: float) -> int:
        rows, clock = 0, time.perf_counter
        while clock() < until_s:
            (ready,) = self.world.recv()
            rows += len(ready.lanes)  # the rows that ended are as many as the first ones, which are no steps
            self._answer(ready.lanes)
        return rows

    def _answer(self, lanes: Any) -> None:
        self._count += 1
        self.world.send(0, lanes, {"action": self._actions[self._count % 64, : len(lanes)]})


if __name__ == "__main__":
    main()
