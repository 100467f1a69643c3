"""A Gymnasium vector env as a world: the same rows from all three ways of starting the next episode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from freewheel.errors import ConfigError
from freewheel.spec import Space
from freewheel.worlds.check import (
    Leaf,
    Where,
    check_values,
    close_all,
    dtype_cure,
    fill,
    obs_leaves,
    parts_of,
    read_reset,
    read_reward,
    refuse_step,
)
from freewheel.worlds.seeds import episode_seed, lane_key
from freewheel.worlds.world import TIMEOUT_S, Array, Ended, Obs, Ready

Vector = gymnasium.vector.VectorEnv[Any, Any, Any]


class VectorWorld:
    """One lane per env of the vector env, which steps them all at once: recv wants an action for every lane it gave.

    The vector env seeds its own episodes after the first, so they cannot be played again: there is no state to save.
    """

    may_rest = False

    def __init__(self, env: Vector, seed: int, name: str, *, owns_env: bool = True) -> None:
        self.name = name
        self.num_lanes = env.num_envs
        self.obs_space = env.single_observation_space
        self.action_space = env.single_action_space
        self._leaves = obs_leaves(name, self.obs_space, self.action_space)
        self._mode = _autoreset_mode(env, name)
        self._envs = [env]
        self._owns_env = owns_env
        self._seed = episode_seed(lane_key(seed, 0), 0)
        self._ids = np.arange(self.num_lanes)
        self._num_steps = np.zeros(self.num_lanes, np.int64)  # of the lane's episode
        self._actions = np.stack([_idle_action(self.action_space)] * self.num_lanes)
        self._waits = np.zeros(self.num_lanes, np.bool_)  # given, and not yet sent an action
        self._over = np.zeros(self.num_lanes, np.bool_)  # ended; the next step resets them (NEXT_STEP)
        self._is_started = False

    def send(self, lanes: Array, actions: Array) -> None:
        if not self._waits[lanes].all():
            raise ValueError(f"{self.name}: send() names a lane among {lanes} that does not wait for an action.")
        self._actions[lanes] = actions
        self._waits[lanes] = False

    def recv(self, timeout_s: float = TIMEOUT_S) -> Ready:
        """All lanes but those whose episode just ended; the time limit cannot interrupt an env in this process."""
        if not self._is_started:
            self._is_started = True
            obs = self._reset({"seed": self._seed})
            return self._give(obs, np.zeros(self.num_lanes, np.float32), np.ones(self.num_lanes, np.bool_), None)
        if self._waits.any():
            raise ValueError(
                f"{self.name}: a vector env steps all lanes at once, and lanes {np.flatnonzero(self._waits)} have no action."
            )
        observed, reward, terminated, truncated, info = self._step()
        first = self._over
        reward[first] = 0
        over = (terminated | truncated) & ~first
        self._over = over if self._mode is AutoresetMode.NEXT_STEP else np.zeros_like(over)
        if not over.any():
            return self._give(self._read(observed), reward, first, None)
        if self._mode is AutoresetMode.SAME_STEP:
            final = self._read_final(info, np.flatnonzero(over))
            obs = self._read(observed)
        else:
            obs = self._read(observed)
            final = {name: rows[over] for name, rows in obs.items()}
        ended = Ended(np.flatnonzero(over), final, reward[over], terminated[over], truncated[over])
        if self._mode is AutoresetMode.NEXT_STEP:
            if over.all():  # nobody waits for an action: the resets need not wait for one either
                obs, reward, first = self._read(self._step()[0]), np.zeros_like(reward), over
                self._over = np.zeros_like(over)
        else:
            self._num_steps[over] = 0
            if self._mode is AutoresetMode.DISABLED:
                begun = self._reset({"options": {"reset_mask": over.copy()}})
                obs = {name: rows.copy() for name, rows in obs.items()}
                for name, rows in obs.items():
                    rows[over] = begun[name][over]
            reward[over], first = 0, over
        return self._give(obs, reward, first, ended)

    def close(self) -> None:
        envs, self._envs = self._envs, []
        if self._owns_env:
            close_all(self.name, envs)

    def state(self) -> None:
        return None

    def set_state(self, state: dict[str, Array] | None) -> list[int]:
        return []

    def _give(self, obs: Obs, reward: Array, first: Array, ended: Ended | None) -> Ready:
        self._waits = ~self._over
        if self._waits.all():
            return Ready(self._ids, obs, reward, first, ended)
        lanes = np.flatnonzero(self._waits)
        return Ready(lanes, {name: rows[lanes] for name, rows in obs.items()}, reward[lanes], first[lanes], ended)

    def _step(self) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        self._num_steps += 1
        self._num_steps[self._over] = 0
        try:
            result = self._envs[0].step(self._actions.copy())  # its own, whatever it does with them
        except Exception as error:
            raise self._where().raised("step", error) from error
        if not (isinstance(result, tuple) and len(result) == 5):
            refuse_step([result], lambda _: self._where())
        observed, rewards, terminated, truncated, info = result
        return (
            observed,
            self._read_rewards(rewards),
            self._read_flags("terminated", terminated),
            self._read_flags("truncated", truncated),
            info,
        )

    def _reset(self, how: dict[str, Any]) -> Obs:
        try:
            result = self._envs[0].reset(**how)
        except Exception as error:
            raise self._where().raised("reset", error) from error
        return self._read(read_reset(result, self._where, None))

    def _read(self, observed: Any) -> Obs:
        """The observations of all lanes by field, as the vector env gave them: no copy where it is not needed."""
        obs: Obs = {}
        for leaf in self._leaves:
            (rows,) = parts_of(leaf, [observed], lambda _: self._where())
            self._check_batch(leaf.name, rows, (self.num_lanes, *leaf.shape))
            if rows.dtype != leaf.dtype:
                what = f"gave {leaf.name} of dtype {rows.dtype}, and its space says {leaf.dtype},"
                raise self._where().error(what, dtype_cure(leaf, rows.dtype))
            obs[leaf.name] = np.ascontiguousarray(rows)  # first: looking at one with gaps takes five times as long
            check_values(leaf, obs[leaf.name], self._where)
        return obs

    def _read_final(self, info: Any, lanes: Array) -> Obs:
        if "final_obs" not in info:
            raise self._where().error(
                "ended an episode without info['final_obs']", "A vector env that resets in the same step gives it."
            )
        final: Obs = {}
        for leaf in self._leaves:
            final[leaf.name] = np.empty((len(lanes), *leaf.shape), leaf.dtype)
            column = [_final_value(info["final_obs"], leaf, lane) for lane in lanes.tolist()]
            fill(leaf, column, final[leaf.name], lambda i: self._where(int(lanes[i])))
        return final

    def _read_rewards(self, rewards: Any) -> Array:
        self._check_batch("reward", rewards, (self.num_lanes,))
        if rewards.dtype.kind not in "fiu":
            raise self._where().error(f"gave rewards of dtype {rewards.dtype}", "Return the rewards as floats.")
        if not np.abs(rewards).max() <= np.finfo(np.float32).max:
            for lane, value in enumerate(rewards):
                read_reward(value, self._where(lane))
        return np.array(rewards, np.float32)

    def _read_flags(self, which: str, flags: Any) -> Array:
        self._check_batch(which, flags, (self.num_lanes,))
        if flags.dtype != np.bool_:
            raise self._where().error(f"gave {which} of dtype {flags.dtype}", f"Return {which} as bool.")
        return np.array(flags)

    def _check_batch(self, what: str, rows: Any, shape: Sequence[int]) -> None:
        if not isinstance(rows, np.ndarray):
            raise self._where().error(
                f"gave {what} as {type(rows).__name__}", "Return a NumPy array with a row per lane."
            )
        if rows.shape != tuple(shape):
            raise self._where().error(
                f"gave {what} of shape {rows.shape}, and {tuple(shape)} is due,",
                "Return a row of the space's shape per lane.",
            )

    def _where(self, lane: int | None = None) -> Where:
        return Where(self.name, lane, int(self._num_steps.max() if lane is None else self._num_steps[lane]), self._seed)


def _autoreset_mode(env: Vector, name: str) -> AutoresetMode:
    mode = (env.metadata or {}).get("autoreset_mode")
    try:
        return AutoresetMode(mode)
    except ValueError:
        modes = ", ".join(f"AutoresetMode.{known.name}" for known in AutoresetMode)
        raise ConfigError(
            f"{name} has metadata['autoreset_mode']={mode!r}, so it is not known which rows end an episode. "
            f"Set it to one of {modes}."
        ) from None


def _final_value(final: Any, leaf: Leaf, lane: int) -> Any:
    """A lane's part of info['final_obs'], which holds arrays with a row per lane, or one object per lane."""
    is_lane = False
    for key in (*leaf.path, None):
        if isinstance(final, np.ndarray) and not is_lane:
            final, is_lane = final[lane], True
        if key is not None:
            final = final[key]
    return final


def _idle_action(space: Space) -> Array:
    """An action of the space, for lanes whose step is a reset."""
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        return np.asarray(space.start, space.dtype)
    if isinstance(space, spaces.Box):
        return np.clip(np.zeros(space.shape, space.dtype), space.low, space.high)
    return np.zeros(space.shape or (), space.dtype)
