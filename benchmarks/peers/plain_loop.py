"""A training loop as single-file scripts have it: envs in turn, a replay of numpy arrays, a module, torch's Adam, a target copy."""

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from torch import Tensor

from freewheel.bench.worker.dqn_settings import BATCH, BUFFER, ENV, EPSILON, LEARNING_STARTS, TARGET_EVERY_STEPS, turns
from freewheel.bench.worker.meter import Meter

Array = np.ndarray[Any, Any]


class Batch(NamedTuple):
    obs: Tensor
    action: Tensor
    reward: Tensor
    next_obs: Tensor
    is_terminal: Tensor


class Ring:
    """The newest `BUFFER` transitions."""

    def __init__(self, num_obs: int, rng: np.random.Generator) -> None:
        self.obs, self.next_obs = (np.zeros((BUFFER, num_obs), np.float32) for _ in range(2))
        self.action = np.zeros(BUFFER, np.int64)
        self.reward, self.is_terminal = (np.zeros(BUFFER, np.float32) for _ in range(2))
        self.rng, self.head, self.size = rng, 0, 0

    def add(self, obs: Array, action: Array, reward: Array, next_obs: Array, is_terminal: Array) -> None:
        at = (self.head + np.arange(len(obs))) % BUFFER
        self.obs[at], self.action[at], self.reward[at] = obs, action, reward
        self.next_obs[at], self.is_terminal[at] = next_obs, is_terminal
        self.head = (self.head + len(obs)) % BUFFER
        self.size = min(self.size + len(obs), BUFFER)

    def sample(self) -> Batch:
        at = self.rng.integers(0, self.size, BATCH)
        columns = (self.obs, self.action, self.reward, self.next_obs, self.is_terminal)
        return Batch(*(torch.from_numpy(column[at]) for column in columns))


def final_obs(next_obs: Array, is_done: Array, info: dict[str, Any]) -> Array:
    """What an episode ended with, where the env has already given the first observation of the next one."""
    if "final_obs" not in info:
        return next_obs
    found: Array = next_obs.copy()
    for i in np.flatnonzero(is_done):
        found[i] = info["final_obs"][i]
    return found


def run(
    meter: Meter,
    num_envs: int,
    act: Callable[[Tensor], Tensor],
    update: Callable[[Batch], None],
    copy_target: Callable[[], None],
) -> None:
    """Until the meter has its window. `act` gives the best actions, `update` makes one update of a batch."""
    mode = gymnasium.vector.AutoresetMode.SAME_STEP
    envs = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make(ENV)] * num_envs, autoreset_mode=mode)
    rng = np.random.default_rng(0)
    random.seed(0)
    space = envs.single_action_space
    assert isinstance(space, gymnasium.spaces.Discrete)
    obs, _ = envs.reset(seed=0)
    ring = Ring(obs.shape[1], rng)
    turns_between, updates_each = turns(num_envs)
    turn = steps = updates = copied_at = 0
    while not meter.is_over(steps, updates):
        if random.random() < EPSILON:
            action = rng.integers(0, int(space.n), num_envs)
        else:
            with torch.no_grad():
                action = act(torch.from_numpy(obs)).numpy()
        next_obs, reward, terminated, truncated, info = envs.step(action)
        last_obs = final_obs(next_obs, terminated | truncated, info)
        ring.add(obs, action, reward, last_obs, terminated)
        obs = next_obs
        turn, steps = turn + 1, steps + num_envs
        if steps < LEARNING_STARTS:
            continue
        if turn % turns_between == 0:
            for _ in range(updates_each):
                update(ring.sample())
            updates += updates_each
        if steps - copied_at >= TARGET_EVERY_STEPS:
            copied_at = steps
            copy_target()
    envs.close()
