"""Random actions that the env's own mask allows: an env may refuse the others."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from freewheel.spec import MASK, Space, choices
from freewheel.worlds.world import Array


class Legal:
    """Replaces each forbidden choice by the next one that is allowed. Without a mask actions stay as they are."""

    def __init__(self, obs_space: Space, action_space: Space) -> None:
        self._counts, starts = choices(action_space)
        self._starts = np.array(starts, np.int64)
        mask = obs_space.spaces.get(MASK) if isinstance(obs_space, spaces.Dict) else None
        size = -1 if mask is None else int(np.prod(mask.shape or (), dtype=np.int64))
        self.has_mask = size == sum(self._counts) > 0

    def rows(self, actions: Array, obs: dict[str, Array]) -> Array:
        """For actions [k, ...] and the observation columns of their rows."""
        return self._moved(actions, obs[f"obs.{MASK}"]) if self.has_mask else actions

    def one(self, action: Any, observed: Any) -> Any:
        """For one action as the env takes it, and an observation as the env gives it."""
        if not self.has_mask:
            return action
        moved = self._moved(np.asarray(action)[None], np.asarray(observed[MASK])[None])[0]
        return int(moved) if isinstance(action, int) else moved

    def _moved(self, actions: Array, mask: Array) -> Array:
        places, allowed = actions.reshape(len(actions), -1) - self._starts, mask.reshape(len(mask), -1) != 0
        first = 0
        for i, count in enumerate(self._counts):
            following = (places[:, i, None] + np.arange(count)) % count
            places[:, i] += np.take_along_axis(allowed[:, first : first + count], following, 1).argmax(1)
            places[:, i] %= count
            first += count
        moved: Array = (places + self._starts).astype(actions.dtype).reshape(actions.shape)
        return moved
