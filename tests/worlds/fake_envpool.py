"""A vector env with EnvPool's calls, whose lanes come in any order: what is known of EnvPool, without EnvPool."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array


class FakePool(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Steps plain envs when they are received. A lane whose episode is over is reset by the next action, which is not looked at.

    As with EnvPool, the seed that it is made with decides all its episodes: a lane's own is made of it and the lane.
    """

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, makes: list[Callable[[], Any]], batch_size: int, seed: int = 42) -> None:
        self.envs = [make() for make in makes]
        self.num_envs = len(makes)
        self.config = {"num_envs": self.num_envs, "batch_size": batch_size, "seed": seed}
        self.single_observation_space = self.envs[0].observation_space
        self.single_action_space = self.envs[0].action_space
        self.observation_space = batch_space(self.single_observation_space, batch_size)
        self.action_space = batch_space(self.single_action_space, batch_size)
        self.random = np.random.default_rng(seed)
        self.under_way: dict[int, Any] = {}  # lane -> its action; None resets it
        self.is_over = np.zeros(self.num_envs, np.bool_)
        self.closed_times = 0

    def async_reset(self) -> None:
        self.under_way = dict.fromkeys(range(self.num_envs))

    def send(self, action: Any, env_id: Any) -> None:
        assert env_id.dtype == np.int32
        assert len(action) == len(env_id)
        for one, lane in zip(action, env_id.tolist(), strict=True):
            assert lane not in self.under_way, f"lane {lane} has an action already"
            self.under_way[lane] = None if self.is_over[lane] else one

    def recv(self) -> Any:
        count = self.config["batch_size"]
        assert len(self.under_way) >= count, "this would wait for ever"
        lanes = self.random.permutation(list(self.under_way))[:count]
        steps = [self._move(lane) for lane in lanes.tolist()]
        self.is_over[lanes] = [terminated or truncated for _, _, terminated, truncated in steps]
        obs, reward, terminated, truncated = (list(column) for column in zip(*steps, strict=True))
        rows = concatenate(self.single_observation_space, obs, create_empty_array(self.single_observation_space, count))
        flags = (np.array(column, np.bool_) for column in (terminated, truncated))
        return rows, np.array(reward, np.float32), *flags, {"env_id": lanes.astype(np.int32)}

    def _move(self, lane: int) -> tuple[Any, float, bool, bool]:
        action = self.under_way.pop(lane)
        if action is None:
            return self.envs[lane].reset(seed=self.config["seed"] + lane)[0], 0.0, False, False
        obs, reward, terminated, truncated, _ = self.envs[lane].step(action)
        return obs, float(reward), terminated, truncated

    def close(self, **kwargs: Any) -> None:
        self.closed_times += 1
