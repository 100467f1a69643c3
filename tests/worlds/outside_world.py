"""A world from outside the package, with what the contract asks for and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from freewheel.config import WorldConfig
from freewheel.worlds.world import TIMEOUT_S, Array, Columns, Ended, Group, Ready

LENGTH = 10  # of an episode


class Bits:
    """Each lane shows a bit, and pays 1 for the action that equals it. All lanes end their episodes together."""

    may_rest = False

    def __init__(self, env: Any, config: WorldConfig, seed: int, *, first_lane: int = 0) -> None:
        self.name = str(env)
        self.groups = (Group("", spaces.Box(0, 1, (2,), np.float32), spaces.Discrete(2), config.lanes),)
        self._random = np.random.default_rng([seed, first_lane])
        self._lanes = np.arange(config.lanes)
        self._taken = 0
        self._obs = self._ask()
        self._reward = np.zeros(config.lanes, np.float32)

    def recv(self, timeout_s: float = TIMEOUT_S) -> tuple[Ready, ...]:
        first, ended = np.full(len(self._lanes), self._taken == 0), None
        if self._taken == LENGTH:
            none = np.zeros(len(self._lanes), np.bool_)
            ended = Ended(self._lanes, {"obs": self._obs}, self._reward, ~none, none)
            self._taken, self._obs, self._reward, first = 0, self._ask(), np.zeros_like(self._reward), ~none
        return (Ready(self._lanes, {"obs": self._obs}, self._reward, first, ended),)

    def send(self, group: int, lanes: Array, actions: Columns) -> None:
        self._reward = (actions["action"] == self._obs[:, 0]).astype(np.float32)
        self._obs, self._taken = self._ask(), self._taken + 1

    def close(self) -> None:
        pass

    def state(self) -> None:
        return None

    def set_state(self, state: dict[str, Array] | None) -> list[int]:
        return []

    def _ask(self) -> Array:
        bits = self._random.integers(0, 2, len(self._lanes))
        return np.stack([bits, 1 - bits], 1).astype(np.float32)


def too_few(env: Any, config: WorldConfig, seed: int, *, first_lane: int = 0) -> Bits:
    return Bits(env, WorldConfig(lanes=1), seed)


def nothing(env: Any, config: WorldConfig, seed: int, *, first_lane: int = 0) -> None:
    return None


def raises(env: Any, config: WorldConfig, seed: int) -> Bits:
    return Bits(env, config, seed)


number = 5
