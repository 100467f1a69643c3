"""One turn of an actor: take what the world has ready, write it, answer it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from freewheel.actors.explore import Explorer
from freewheel.actors.history import History
from freewheel.actors.infer import Infer
from freewheel.config import WorldConfig
from freewheel.memory.lanes import Writer
from freewheel.report.episodes import Episode, Episodes
from freewheel.report.ledger import Page
from freewheel.report.phases import COUNTERS, PHASES
from freewheel.worlds.world import Ended, Obs, World

Array = np.ndarray[Any, Any]
ENV, INFER, WRITE = (PHASES.index(name) for name in ("env", "infer", "write"))
ROWS_BEGUN, ROWS, CHOICES = (COUNTERS.index(name) for name in ("rows_begun", "rows", "choices"))


class Actor:
    """Acts in one world and writes its lanes; `turn` is called again and again.

    Lane 0 of the world is lane `first_lane` of the run. With a `page` of the ledger it marks what it does.
    """

    def __init__(
        self,
        world: World,
        writer: Writer,
        infer: Infer,
        explorer: Explorer,
        config: WorldConfig,
        first_lane: int = 0,
        page: Page | None = None,
    ) -> None:
        self.world, self.writer, self.infer, self.explorer = world, writer, infer, explorer
        self.episodes = Episodes(world.num_lanes)
        self.epsilon = explorer.epsilon(0)
        self._config = config
        stack = config.stack
        self.history = History(writer.spec.fields, world.num_lanes, stack) if stack > 1 else None
        self._action_shape, self._action_dtype = world.action_space.shape or (), world.action_space.dtype
        self._never = np.zeros(world.num_lanes, np.bool_)
        self._first_lane = first_lane
        self._enter: Callable[[int], None] = page.enter if page else _nothing
        self._count: Callable[[int, int], None] = page.count if page else _nothing

    def turn(self, step: int, version: int, seconds: float = 0.0) -> tuple[int, list[Episode]]:
        """The steps that were completed (`step` of the run were before), and the episodes that ended with them."""
        enter = self._enter
        enter(ENV)
        ready = self.world.recv()
        enter(WRITE)
        lanes, ended = ready.lanes, ready.ended
        steps = len(lanes) - int(np.count_nonzero(ready.first))
        if ended is not None:
            steps += len(ended.lanes)
            self._write_ends(ended, version)
        finished = self.episodes.add(lanes, ready.reward, ready.first, ended, step + steps, seconds)
        enter(INFER)
        self.epsilon = self.explorer.epsilon(step)
        seen = ready.obs if self.history is None else self.history.push(lanes, ready.obs, ready.first)
        actions = self.infer.act(seen, lanes, *self.explorer.explore(self.epsilon, lanes, ready.first))
        self._count(CHOICES, 1)
        enter(WRITE)
        never = self._never[: len(lanes)]
        self._append(lanes, {**ready.obs, "action": actions}, ready.reward, never, never, version)
        enter(ENV)
        self.world.send(lanes, actions)
        return steps, finished

    def _write_ends(self, ended: Ended, version: int) -> None:
        none = np.zeros((len(ended.lanes), *self._action_shape), self._action_dtype)
        fields = {**ended.obs, "action": none}
        self._append(ended.lanes, fields, ended.reward, ended.terminated, ended.truncated, version)

    def _append(
        self, lanes: Array, fields: Obs, reward: Array, terminated: Array, truncated: Array, version: int
    ) -> None:
        # Counted before and after: what an actor had begun when it died is then known to the row.
        self._count(ROWS_BEGUN, len(lanes))
        own = lanes + self._first_lane if self._first_lane else lanes
        self.writer.append(own, fields, learned(reward, self._config), terminated, truncated, version)
        self._count(ROWS, len(lanes))


def learned(reward: Array, config: WorldConfig) -> Array:
    """The rewards as they are learned from: scaled, then clipped."""
    if config.reward_scale != 1.0:
        reward = (reward * config.reward_scale).astype(np.float32)
    if config.reward_clip > 0.0:
        reward = np.clip(reward, -config.reward_clip, config.reward_clip)
    return reward


def _nothing(*_: int) -> None:
    """In place of a mark where there is no ledger."""
