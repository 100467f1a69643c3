"""EnvPool with a batch smaller than its number of envs, as a world: recv gives the lanes that finish first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from freewheel.errors import RAISED, ConfigError
from freewheel.worlds.check import Where, refuse_step
from freewheel.worlds.vector import Vector, VectorWorld
from freewheel.worlds.world import TIMEOUT_S, Array, Columns, Ended, Ready


def config_of(env: Any) -> Mapping[str, Any]:
    """The settings of an env with EnvPool's interface; of any other, none."""
    config = getattr(env, "config", None)
    is_envpool = isinstance(config, Mapping) and all(hasattr(env, call) for call in ("async_reset", "send", "recv"))
    return config if is_envpool and config is not None else {}


def gives_some_lanes(env: Any) -> bool:
    """Whether it has EnvPool's interface, and gives fewer lanes at a time than it has."""
    return bool(0 < config_of(env).get("batch_size", 0) < env.num_envs)


def refuse_own_seed(name: str, env: Any, seed: int) -> None:
    """EnvPool is seeded when it is made, and by nothing else: every actor and every run would play the same episodes."""
    own = config_of(env).get("seed", seed)
    if own != seed:
        raise ConfigError(
            f"{name} made envs with seed={own}, whatever the run's seed, so that all actors play the same episodes. Add a parameter "
            "seed to it and pass that to envpool.make(seed=seed). Leave seed out of world.kwargs."
        )


def note_own_seed(name: str, env: Any) -> list[str]:
    """What the user should know of an env object that the run cannot seed."""
    own = config_of(env).get("seed")
    return [] if own is None else [f"{name} was made with seed={own}: the run's seed does not change its episodes."]


class AsyncVectorWorld(VectorWorld):
    """One lane per env of a vector env with async_reset, send and recv, whose recv gives `batch_size` lanes.

    An env whose episode is over begins the next one with the next action. This world sends that action at once, so that no lane
    rests. Which lanes come together depends on timing: no two runs are the same.
    """

    def __init__(self, env: Vector, seed: int, name: str, *, owns_env: bool = True) -> None:
        super().__init__(env, seed, name, owns_env=owns_env)
        if self._mode is not AutoresetMode.NEXT_STEP:
            raise ConfigError(
                f"{name} gives some of its lanes at a time and has metadata['autoreset_mode']={self._mode}. Such an env resets "
                "with the next action: set it to AutoresetMode.NEXT_STEP."
            )
        config: Mapping[str, Any] = env.config  # type: ignore[attr-defined]
        self._num_rows = int(config["batch_size"])
        self._shapes = [(leaf, (self._num_rows, *leaf.shape)) for leaf in self._leaves]
        self._seed = int(config.get("seed", 0))  # the seed is an argument of making such envs
        self._came = self._ids[: self._num_rows]  # the lane of each row of the newest batch
        self._begins = np.ones(self.num_lanes, np.bool_)  # the lane's next row is the first of an episode
        self._taken = np.zeros(self.num_lanes, np.int64)  # steps in the lane's episode
        self._waits = np.zeros(self.num_lanes, np.bool_)

    def first_mask(self) -> Any:
        return None  # it is reset once

    def send(self, group: int, lanes: Array, actions: Columns) -> None:
        if not self._waits[lanes].all():
            raise ValueError(f"{self.name}: send() names a lane among {lanes} that does not wait for an action.")
        self._waits[lanes] = False
        self._call("send", np.array(actions["action"]), lanes.astype(np.int32))  # a copy: the env may write into it

    def recv(self, timeout_s: float = TIMEOUT_S) -> tuple[Ready, ...]:
        """The lanes that finish first, without those whose episode just ended. The time limit cannot interrupt the env."""
        if not self._is_started:
            self._is_started = True
            self._call("async_reset")
        if self._waits.any():
            raise ValueError(
                f"{self.name}: lanes {self._waits.nonzero()[0]} have no action, so recv() could wait for them forever."
            )
        ended: Ended | None = None
        while True:  # a lane cannot end twice: its next row begins an episode, and ends the loop
            ready, over = self._arrived()
            ended = over if ended is None else ended if over is None else ended.joined(over)
            if len(ready.lanes):
                self._waits[ready.lanes] = True
                ready.ended = ended
                return (ready,)

    def _arrived(self) -> tuple[Ready, Ended | None]:
        """The rows of the next batch that go on, and those that end an episode."""
        result = self._call("recv")
        if not (isinstance(result, tuple) and len(result) == 5):
            refuse_step([result], lambda _: self._where())
        came = result[4].get("env_id")
        self._check_batch("info['env_id']", came, (self._num_rows,))
        lanes = self._came = came.astype(np.int64)
        first = self._begins[lanes]
        self._taken[lanes] = np.where(first, 0, self._taken[lanes] + 1)
        observed, reward, terminated, truncated, info = self._checked(*result)
        obs = self._read(observed)
        reward[first] = 0
        over = (terminated | truncated) & ~first
        self._begins[lanes] = over
        if not over.any():
            return Ready(lanes, obs, reward, first, None), None
        self._check_mode(info)
        rows, rest = over.nonzero()[0], (~over).nonzero()[0]
        final = {name: values.take(rows, 0) for name, values in obs.items()}
        going = {name: values.take(rest, 0) for name, values in obs.items()}
        ended = Ended(lanes[rows], final, reward[rows], terminated[rows], truncated[rows])
        self._call("send", self._actions[: len(rows)].copy(), ended.lanes.astype(np.int32))
        return Ready(lanes[rest], going, reward[rest], first[rest], None), ended

    def _call(self, method: str, *given: Any) -> Any:
        try:
            return getattr(self._envs[0], method)(*given)
        except RAISED as error:
            raise self._where().raised(method, error) from error

    def _where(self, row: int | None = None) -> Where:
        lane = None if row is None else int(self._came[row])
        taken = self._taken[self._came].max() if lane is None else self._taken[lane]
        return Where(self.name, lane, int(taken), self._seed)
