"""Discrete spaces with a fast contains(): many envs call it in every step, and Gymnasium's takes longer than their physics."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class QuickDiscrete(spaces.Discrete):
    """Equal to the space it is made of. Gymnasium's contains() takes 3 us of CartPole's step of 10 us."""

    def __init__(self, space: spaces.Discrete) -> None:
        super().__init__(space.n, start=space.start, dtype=space.dtype.type)
        self._kind, self._least, self._most = space.dtype.type, int(space.start), int(space.start + space.n - 1)

    def contains(self, x: Any) -> bool:
        if type(x) is self._kind:
            return self._least <= int(x) <= self._most
        return super().contains(x)


class QuickMultiDiscrete(spaces.MultiDiscrete):
    """Equal to the space it is made of, which has the same choices from 0 on in every place, as vector envs have.

    Gymnasium's contains() takes 7.6 us of a vector CartPole's step of 40 us.
    """

    def __init__(self, space: spaces.MultiDiscrete) -> None:
        super().__init__(space.nvec, dtype=space.dtype.type, start=space.start)
        self._count = int(space.nvec.flat[0])

    def contains(self, x: Any) -> bool:
        if type(x) is np.ndarray and x.dtype is self.dtype and x.shape == self.shape:
            # As unsigned numbers, negative ones are above all others.
            return bool(np.maximum.reduce(x.view(np.uint64), None) < self._count)
        return super().contains(x)


def quicken(env: gymnasium.Env[Any, Any] | gymnasium.vector.VectorEnv[Any, Any, Any]) -> None:
    """Replaces the action space of a new env by an equal, faster one."""
    own = env.unwrapped
    space = getattr(own, "action_space", None)  # the world refuses a vector env without one
    if type(space) is spaces.Discrete:
        own.action_space = QuickDiscrete(space)
    elif type(space) is spaces.MultiDiscrete and _are_alike(space):
        own.action_space = QuickMultiDiscrete(space)


def _are_alike(space: spaces.MultiDiscrete) -> bool:
    return bool(space.dtype == np.int64 and not space.start.any() and (space.nvec == space.nvec.flat[0]).all())
