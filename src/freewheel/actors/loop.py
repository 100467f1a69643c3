"""One turn of an actor: take what the world has ready, write it, answer it."""

from __future__ import annotations

from typing import Any

import numpy as np

from freewheel.actors.explore import Explorer
from freewheel.actors.history import History
from freewheel.actors.infer import Infer
from freewheel.config import WorldConfig
from freewheel.memory.lanes import Writer
from freewheel.report.episodes import Episode, Episodes
from freewheel.worlds.world import Ended, World

Array = np.ndarray[Any, Any]


class Actor:
    """Acts in one world and writes its lanes; `turn` is called again and again."""

    def __init__(self, world: World, writer: Writer, infer: Infer, explorer: Explorer, config: WorldConfig) -> None:
        self.world, self.writer, self.infer, self.explorer = world, writer, infer, explorer
        self.episodes = Episodes(world.num_lanes)
        self.epsilon = explorer.epsilon(0)
        self._config = config
        stack = config.stack
        self.history = History(writer.spec.fields, world.num_lanes, stack) if stack > 1 else None
        self._action_shape, self._action_dtype = world.action_space.shape or (), world.action_space.dtype
        self._never = np.zeros(world.num_lanes, np.bool_)

    def turn(self, step: int, version: int, seconds: float = 0.0) -> tuple[int, list[Episode]]:
        """The steps that were completed (`step` of the run were before), and the episodes that ended with them."""
        ready = self.world.recv()
        lanes, ended = ready.lanes, ready.ended
        steps = len(lanes) - int(np.count_nonzero(ready.first))
        if ended is not None:
            steps += len(ended.lanes)
            self._write_ends(ended, version)
        finished = self.episodes.add(lanes, ready.reward, ready.first, ended, step + steps, seconds)
        self.epsilon = self.explorer.epsilon(step)
        seen = ready.obs if self.history is None else self.history.push(lanes, ready.obs, ready.first)
        actions = self.infer.act(seen, *self.explorer.explore(self.epsilon, lanes, ready.first))
        never = self._never[: len(lanes)]
        self.writer.append(lanes, {**ready.obs, "action": actions}, self._learned(ready.reward), never, never, version)
        self.world.send(lanes, actions)
        return steps, finished

    def _write_ends(self, ended: Ended, version: int) -> None:
        none = np.zeros((len(ended.lanes), *self._action_shape), self._action_dtype)
        reward = self._learned(ended.reward)
        fields = {**ended.obs, "action": none}
        self.writer.append(ended.lanes, fields, reward, ended.terminated, ended.truncated, version)

    def _learned(self, reward: Array) -> Array:
        """The rewards as they are learned from: scaled, then clipped."""
        if self._config.reward_scale != 1.0:
            reward = (reward * self._config.reward_scale).astype(np.float32)
        if self._config.reward_clip > 0.0:
            reward = np.clip(reward, -self._config.reward_clip, self._config.reward_clip)
        return reward
