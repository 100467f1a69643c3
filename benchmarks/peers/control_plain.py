"""SAC in the manner of a single-file script, its update compiled by torch.compile; and its update alone, without env and replay."""

from typing import Any

import gymnasium
import numpy as np
import torch

from freewheel.bench.worker.meter import Meter

from .control_sac import Batch, Sac, random_batch
from .control_settings import BATCH, BUFFER, LEARNING_STARTS

Array = np.ndarray[Any, Any]


def version() -> str:
    return f"torch {torch.__version__}"


def train(meter: Meter, order: dict[str, Any]) -> None:
    """With `rows` only the update is made, again and again: what the arithmetic alone allows."""
    if "rows" in order:
        train_bare(meter, order["env"], order["rows"])
    else:
        train_whole(meter, order["env"], order["envs"])


def train_bare(meter: Meter, env: str, rows: int) -> None:
    """Of a batch that is shared with other processes each makes its rows: an update of a part counts as that part of one."""
    made = gymnasium.make(env)
    sizes = made.observation_space.shape, made.action_space.shape
    made.close()
    num_obs, num_actions = (int(np.prod(size)) for size in sizes if size is not None)
    sac, batch = Sac(num_obs, num_actions), random_batch(rows, num_obs, num_actions)
    parts = BATCH // rows
    calls = 0
    while not meter.is_over(calls // parts, calls // parts):
        sac.update(batch)
        calls += 1


class Ring:
    """The newest `BUFFER` transitions, as columns of numpy."""

    def __init__(self, num_obs: int, num_actions: int) -> None:
        self.columns = [np.zeros((BUFFER, size), np.float32) for size in (num_obs, num_actions, 1, num_obs, 1)]
        self.rng, self.head, self.size = np.random.default_rng(0), 0, 0

    def add(self, *rows: Array) -> None:
        at = (self.head + np.arange(len(rows[0]))) % BUFFER
        for column, values in zip(self.columns, rows, strict=True):
            column[at] = values.reshape(len(at), -1)
        self.head = (self.head + len(at)) % BUFFER
        self.size = min(self.size + len(at), BUFFER)

    def sample(self) -> Batch:
        at = self.rng.integers(0, self.size, BATCH)
        obs, action, reward, next_obs, is_terminal = (torch.from_numpy(column[at]) for column in self.columns)
        return Batch(obs, action, reward.squeeze(1), next_obs, is_terminal.squeeze(1))


def train_whole(meter: Meter, env: str, num_envs: int) -> None:
    mode = gymnasium.vector.AutoresetMode.SAME_STEP
    envs = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make(env)] * num_envs, autoreset_mode=mode)
    space = envs.single_action_space
    assert isinstance(space, gymnasium.spaces.Box)
    middle, half = (space.high + space.low) / 2, (space.high - space.low) / 2
    obs, _ = envs.reset(seed=0)
    sac, ring = Sac(obs.shape[1], len(middle)), Ring(obs.shape[1], len(middle))
    steps = updates = 0
    while not meter.is_over(steps, updates):
        obs = obs.astype(np.float32)
        action = sac.act(torch.from_numpy(obs)).numpy()
        next_obs, reward, terminated, truncated, info = envs.step(middle + half * action)
        last_obs = final_obs(next_obs, terminated | truncated, info)
        ring.add(obs, action, reward, last_obs, terminated)
        obs, steps = next_obs, steps + num_envs
        if steps > LEARNING_STARTS:
            for _ in range(num_envs):
                sac.update(ring.sample())
            updates += num_envs
    envs.close()


def final_obs(next_obs: Array, is_done: Array, info: dict[str, Any]) -> Array:
    """What an episode ended with, where the env has already given the first observation of the next one."""
    if "final_obs" not in info:
        return next_obs
    found: Array = next_obs.copy()
    for i in np.flatnonzero(is_done):
        found[i] = info["final_obs"][i]
    return found
