"""Random actions that the env's own mask allows: an env may refuse the others."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from freewheel.spec import MASK, Space, choices, flatten
from freewheel.worlds.world import Array, Columns

NUM_ACTIONS = 512


class RandomActions:
    """Actions for an env, or for up to `num_rows` rows of its world: the same in every call.

    If the env has a mask, each forbidden choice becomes the next one that is allowed.
    """

    def __init__(self, obs_space: Space, action_space: Space, by_mask: bool = True, num_rows: int = 1) -> None:
        action_space.seed(1)
        self._samples = [action_space.sample() for _ in range(NUM_ACTIONS + num_rows)]
        flat = [flatten("action", action_space, sample) for sample in self._samples]
        self._columns = {name: np.stack([row[name] for row in flat]) for name in flat[0]}
        self._counts, starts = choices(action_space)
        self._starts = np.array(starts, np.int64)
        mask = obs_space.spaces.get(MASK) if isinstance(obs_space, spaces.Dict) else None
        size = -1 if mask is None else int(np.prod(mask.shape or (), dtype=np.int64))
        self.has_mask = by_mask and size == sum(self._counts) > 0

    def one(self, i: int, observed: Any) -> Any:
        """For step i, whose observation is as the env gave it."""
        action = self._samples[i % NUM_ACTIONS]
        if not self.has_mask:
            return action
        return self._allowed(np.asarray(action)[None], np.asarray(observed[MASK])[None])[0]

    def rows(self, i: int, count: int, obs: Columns) -> Columns:
        """For steps i to i + count - 1, and the observation columns of their rows."""
        first = i % NUM_ACTIONS
        actions = {name: column[first : first + count] for name, column in self._columns.items()}
        return {"action": self._allowed(actions["action"], obs[f"obs.{MASK}"])} if self.has_mask else actions

    def _allowed(self, actions: Array, mask: Array) -> Array:
        places, allowed = actions.reshape(len(actions), -1) - self._starts, mask.reshape(len(mask), -1) != 0
        first = 0
        for i, count in enumerate(self._counts):
            following = (places[:, i, None] + np.arange(count)) % count
            places[:, i] += np.take_along_axis(allowed[:, first : first + count], following, 1).argmax(1)
            places[:, i] %= count
            first += count
        moved: Array = (places + self._starts).astype(actions.dtype).reshape(actions.shape)
        return moved
