"""An env in PufferLib's form without PufferLib: the same arrays at every step, and an ended agent shows its next episode at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces


class Counts:
    """Each agent counts to `length` of its own; even ones then terminate, odd ones are truncated. Action 1 gives a reward of 1."""

    def __init__(self, num_envs: int = 1, agents: int = 1) -> None:
        self.single_observation_space = spaces.Box(-1, 1000, (2,), np.float32)
        self.single_action_space = spaces.Discrete(2)
        self.num_agents = num_envs * agents
        self.observations = np.zeros((self.num_agents, 2), np.float32)
        self.rewards = np.zeros(self.num_agents, np.float32)
        self.terminals, self.truncations = np.zeros(self.num_agents, np.bool_), np.zeros(self.num_agents, np.bool_)
        self.masks = np.ones(self.num_agents, np.bool_)
        self.length = 2 + np.arange(self.num_agents)
        self.is_closed = False

    def reset(self, seed: int | None = None) -> Any:
        self.observations[:] = np.stack([np.arange(self.num_agents), np.zeros(self.num_agents)], axis=1)
        return self.observations, []

    def step(self, actions: Any) -> Any:
        self.observations[:, 1] += 1
        self.rewards[:] = actions
        over = self.observations[:, 1] == self.length
        even = np.arange(self.num_agents) % 2 == 0
        self.terminals[:], self.truncations[:] = over & even, over & ~even
        self.observations[over, 1] = 0
        return self.observations, self.rewards, self.terminals, self.truncations, []

    def close(self) -> None:
        self.is_closed = True


class Masked(Counts):
    def step(self, actions: Any) -> Any:
        self.masks[1] = False
        return super().step(actions)


def of_two_agents(num_envs: int) -> Any:
    return Counts(num_envs, agents=2)
