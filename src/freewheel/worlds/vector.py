"""A Gymnasium vector env as a world: the same rows with each of the three autoreset modes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from freewheel._core import StepReader
from freewheel.errors import RAISED, ConfigError
from freewheel.spec import Space, any_value
from freewheel.worlds import check
from freewheel.worlds.check import Leaf, Where
from freewheel.worlds.image import LIFE_LOST
from freewheel.worlds.info_mask import mask_at_reset
from freewheel.worlds.seeds import episode_seed, lane_key
from freewheel.worlds.world import TIMEOUT_S, Array, Columns, Ended, Obs, OneGroup, Ready

Vector = gymnasium.vector.VectorEnv[Any, Any, Any]
LARGEST_SQUARE = float(np.finfo(np.float32).max) ** 2
# What StepReader.read gives other than the number of episodes that ended: it cannot read observations with such gaps; no episode ended,
# and the rows are in `whole`, since the env gave columns. Any other negative value needs the checks in Python.
HAS_GAPS, WAS_MOVED = -2, -3


class PlainRows:
    """The arrays into which the core reads a step, reused in every step: making them takes longer than filling them."""

    def __init__(self, leaf: Leaf, begun: Array) -> None:
        num_lanes = len(begun)

        def arrays(*flags: type[np.bool_]) -> tuple[Array, ...]:
            """A number, a row, a reward and flags of each lane."""
            rows = np.empty((num_lanes, *leaf.shape), leaf.dtype)
            others = [np.empty(num_lanes, kind) for kind in (np.int64, np.float32, *flags)]
            return (others[0], rows, *others[1:])

        self.name = leaf.name
        self.whole = np.empty((num_lanes, *leaf.shape), leaf.dtype)
        self.reward = np.empty(num_lanes, np.float32)
        # Lanes that ended in this step, and in the one before.
        self.masks = (np.zeros(num_lanes, np.bool_), np.zeros(num_lanes, np.bool_))
        going, ended = arrays(np.bool_), arrays(np.bool_, np.bool_)
        self.reader = StepReader(self.whole, self.reward, going, ended, begun)
        # The first rows of the lanes that go on (number, row, reward, first), and of those whose episode ended (number, row, reward,
        # terminated, truncated).
        self.going: Callable[[int], tuple[Array, ...]] = cache(lambda count: tuple(rows[:count] for rows in going))
        self.ended: Callable[[int], tuple[Array, ...]] = cache(lambda count: tuple(rows[:count] for rows in ended))


class VectorWorld(OneGroup):
    """One lane per env of the vector env, which steps all at once: each lane of a recv needs an action before the next.

    The vector env chooses the seeds of all episodes but the first, so they cannot be replayed: there is no state to save.
    """

    may_rest = False

    def __init__(self, env: Vector, seed: int, name: str, *, owns_env: bool = True) -> None:
        super().__init__(name, env.single_observation_space, env.single_action_space, env.num_envs)
        self._leaves = check.obs_leaves(name, self.obs_space, _check_actions(name, self.action_space))
        self._num_rows = self.num_lanes  # in a step
        self._shapes = [(leaf, (self._num_rows, *leaf.shape)) for leaf in self._leaves]
        self._mode = _autoreset_mode(env, name)
        self._envs = [env]
        self._owns_env = owns_env
        self._seed = episode_seed(lane_key(seed, 0), 0)
        self._ids = np.arange(self.num_lanes)
        self._none = np.zeros(self.num_lanes, np.bool_)
        self._step_count = 0
        self._begun = np.zeros(self.num_lanes, np.int64)  # the step with which the lane's episode began
        self._actions = np.stack([any_value(self.action_space)] * self.num_lanes)  # for lanes whose step is a reset
        # Lanes that wait for an action: the array of recv, until one of them has an action.
        self._given: Array | None = None
        self._over = self._none  # ended; the next step resets them (NEXT_STEP)
        self._is_started = False
        self._lost: Array | None = None  # lanes that lost a life in the last step
        leaf = self._leaves[0]
        is_one = len(self._leaves) == 1 and not leaf.path and (leaf.bounds is None or leaf.dtype.kind == "f")
        self._rows = PlainRows(leaf, self._begun) if is_one else None  # None: the core cannot read such observations

    def send(self, group: int, lanes: Array, actions: Columns) -> None:
        if lanes is self._given:  # all at once, as they came
            self._given = None
        else:
            self._send_some(lanes)
        if lanes is self._ids:
            self._actions[...] = actions["action"]
        else:
            self._actions[lanes] = actions["action"]

    def _send_some(self, lanes: Array) -> None:
        waits = self._none.copy()
        if self._given is not None:
            waits[self._given] = True
        if not waits[lanes].all():
            raise ValueError(f"{self.name}: send() names a lane among {lanes} that does not wait for an action.")
        waits[lanes] = False
        rest = waits.nonzero()[0]
        self._given = rest if len(rest) else None

    def recv(self, timeout_s: float = TIMEOUT_S) -> tuple[Ready, ...]:
        """All lanes without those whose episode just ended. The time limit cannot interrupt an env in this process."""
        self._lost = None
        ready = self._recv()
        if self._lost is not None:
            ready.end_lives(np.flatnonzero(self._lost))
        return (ready,)

    def _recv(self) -> Ready:
        if not self._is_started:
            self._is_started = True
            obs = self._reset({"seed": self._seed})
            return self._give(obs, np.zeros(self.num_lanes, np.float32), np.ones(self.num_lanes, np.bool_), None)
        if self._given is not None:
            raise ValueError(
                f"{self.name}: a vector env steps all lanes at once, and lanes {self._given} have no action."
            )
        result = self._raw_step()
        if self._rows is not None and (ready := self._plain(self._rows, *result)) is not None:
            return ready
        observed, reward, terminated, truncated, info = self._checked(*result)
        first, over = self._over, terminated | truncated
        if first is not self._none:
            begun = first.nonzero()[0]
            reward[begun], over[begun] = 0, False
        self._over = self._none
        if not np.count_nonzero(over):  # ten times as fast as any()
            return self._give(self._read(observed), reward, first, None)
        return self._end(observed, reward, terminated, truncated, info, first, over)

    def _end(
        self, observed: Any, reward: Array, terminated: Array, truncated: Array, info: Any, first: Array, over: Array
    ) -> Ready:
        """A step in which some episodes ended: their final observations, and the first ones of the next episodes."""
        lanes = over.nonzero()[0]  # indexing by numbers is faster than by a mask
        if self._mode is AutoresetMode.SAME_STEP:
            final = self._read_final(info, lanes)
            obs = self._read(observed)
        else:
            self._check_mode(info)
            obs = self._read(observed)
            final = {name: rows.take(lanes, 0) for name, rows in obs.items()}
        ended = Ended(lanes, final, reward.take(lanes), terminated.take(lanes), truncated.take(lanes))
        resets_later = self._mode is AutoresetMode.NEXT_STEP
        self._begun[lanes] = self._step_count + resets_later
        if resets_later and len(lanes) < self.num_lanes:
            self._over = over
        elif resets_later:  # no lane needs an action, so all can be reset at once
            obs, reward, first = self._read(self._checked(*self._raw_step())[0]), np.zeros_like(reward), over
        else:
            if self._mode is AutoresetMode.DISABLED:
                new = self._reset({"options": {"reset_mask": over.copy()}})
                obs = {name: rows.copy() for name, rows in obs.items()}
                for name, rows in obs.items():
                    rows[lanes] = new[name][lanes]
            reward[lanes], first = 0, over
        return self._give(obs, reward, first, ended)

    def first_mask(self) -> Any:
        given = mask_at_reset(self._envs[0], self._seed)
        return None if given is None else given[0]

    def close(self) -> None:
        envs, self._envs = self._envs, []
        if self._owns_env:
            check.close_all(self.name, envs)

    def _give(self, obs: Obs, reward: Array, first: Array, ended: Ended | None) -> Ready:
        if self._over is self._none:
            self._given = self._ids
            return Ready(self._ids, obs, reward, first, ended)
        lanes = self._given = (~self._over).nonzero()[0]
        rows = {name: rows.take(lanes, 0) for name, rows in obs.items()}
        return Ready(lanes, rows, reward.take(lanes), first.take(lanes), ended)

    def _plain(
        self, rows: PlainRows, observed: Any, rewards: Any, terminated: Any, truncated: Any, info: Any
    ) -> Ready | None:
        """A step as the core reads it in one call; None if it needs the checks in Python."""
        first = self._over
        over = rows.masks[first is rows.masks[0]]  # the other one
        given = (rewards, terminated, truncated, first, over, self._step_count + 1)
        num_over = rows.reader.read(observed, *given)
        if num_over == HAS_GAPS:
            observed = np.ascontiguousarray(observed)
            num_over = rows.reader.read(observed, *given)
        if num_over == 0 or num_over == WAS_MOVED:
            self._over, self._given = self._none, self._ids
            return Ready(self._ids, {rows.name: observed if num_over == 0 else rows.whole}, rows.reward, first, None)
        if num_over < 0 or num_over == self.num_lanes or self._mode is not AutoresetMode.NEXT_STEP:
            return None
        self._check_mode(info)
        lanes, obs, reward, begun = rows.going(self.num_lanes - num_over)
        last, final, *ends = rows.ended(num_over)
        self._over, self._given = over, lanes
        return Ready(lanes, {rows.name: obs}, reward, begun, Ended(last, {rows.name: final}, *ends))

    def _raw_step(self) -> tuple[Any, Any, Any, Any, Any]:
        self._step_count += 1
        try:
            result = self._envs[0].step(self._actions.copy())  # a copy: the env may write into it
        except RAISED as error:
            raise self._where().raised("step", error) from error
        if not (isinstance(result, tuple) and len(result) == 5):
            check.refuse_step([result], lambda _: self._where())
        self._lost = result[4].get(LIFE_LOST)
        return result

    def _checked(
        self, observed: Any, rewards: Any, terminated: Any, truncated: Any, info: dict[str, Any]
    ) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        ends = self._read_flags("terminated", terminated), self._read_flags("truncated", truncated)
        return observed, self._read_rewards(rewards), *ends, info

    def _reset(self, how: dict[str, Any]) -> Obs:
        try:
            result = self._envs[0].reset(**how)
        except RAISED as error:
            raise self._where().raised("reset", error) from error
        return self._read(check.read_reset(result, self._where, None))

    def _read(self, observed: Any) -> Obs:
        """The observations of all lanes by field, copied only where needed."""
        obs: Obs = {}
        for leaf, shape in self._shapes:
            rows = check.parts_of(leaf, [observed], lambda _: self._where())[0] if leaf.path else observed
            self._check_batch(leaf.name, rows, shape)
            if rows.dtype != leaf.dtype:
                what = f"gave {leaf.name} of dtype {rows.dtype}, and its space says {leaf.dtype},"
                raise self._where().error(what, check.dtype_cure(leaf, rows.dtype))
            # Before the check, which takes five times as long on an array with gaps.
            obs[leaf.name] = np.ascontiguousarray(rows)
            check.check_values(leaf, obs[leaf.name], self._where)
        return obs

    def _read_final(self, info: Any, lanes: Array) -> Obs:
        if "final_obs" not in info:
            raise self._where().error(
                "ended an episode without info['final_obs']", "A vector env that resets in the same step must give it."
            )
        final: Obs = {}
        for leaf in self._leaves:
            final[leaf.name] = np.empty((len(lanes), *leaf.shape), leaf.dtype)
            column = [_final_value(info["final_obs"], leaf, lane) for lane in lanes.tolist()]
            check.fill(leaf, column, final[leaf.name], lambda i: self._where(int(lanes[i])))
        return final

    def _check_mode(self, info: Any) -> None:
        """A final observation beside the row shows that the row begins the next episode."""
        if "final_obs" in info or "_final_obs" in info:
            raise self._where().error(
                f"gave info['final_obs'], as envs do that reset in the same step, but its metadata['autoreset_mode'] is "
                f"AutoresetMode.{self._mode.name},",
                "Set it to AutoresetMode.SAME_STEP, or remove final_obs from info if the env does not reset in that step.",
            )

    def _read_rewards(self, rewards: Any) -> Array:
        self._check_batch("reward", rewards, (self._num_rows,))
        if rewards.dtype.kind not in "fiu":
            raise self._where().error(f"gave rewards of dtype {rewards.dtype}", "Return the rewards as floats.")
        # Each is finite and fits float32 if the sum of their squares does; NaN fails the comparison.
        fits = rewards.dtype.kind == "f" and float(rewards.dot(rewards)) <= LARGEST_SQUARE
        if not fits and not np.abs(rewards).max() <= np.finfo(np.float32).max:
            for row, value in enumerate(rewards):
                check.read_reward(value, self._where(row))
        return np.array(rewards, np.float32)

    def _read_flags(self, which: str, flags: Any) -> Any:
        self._check_batch(which, flags, (self._num_rows,))
        if flags.dtype != np.bool_:
            raise self._where().error(f"gave {which} of dtype {flags.dtype}", f"Return {which} as bool.")
        return flags

    def _check_batch(self, what: str, rows: Any, shape: tuple[int, ...]) -> None:
        if not isinstance(rows, np.ndarray):
            raise self._where().error(
                f"gave {what} as {type(rows).__name__}", "Return a NumPy array with one row per lane."
            )
        if rows.shape != shape:
            raise self._where().error(
                f"gave {what} of shape {rows.shape} instead of {shape}", "Return one row of the space's shape per lane."
            )

    def _where(self, row: int | None = None) -> Where:
        """The place of a row of the newest step."""
        begun = self._begun.min() if row is None else self._begun[row]
        return Where(self.name, row, int(self._step_count - begun), self._seed)


def _check_actions(name: str, action_space: Space) -> Space:
    """Refuses nested actions: vector envs do not agree on the form of a batch of them."""
    if isinstance(action_space, (spaces.Dict, spaces.Tuple)):
        raise ConfigError(
            f"{name} has the action space {action_space}; a lane of a vector env takes one Box, Discrete, MultiDiscrete or "
            "MultiBinary. Set world.kind to inline or pool, or wrap the env so that its actions are one of them."
        )
    return action_space


def _autoreset_mode(env: Vector, name: str) -> AutoresetMode:
    mode = (env.metadata or {}).get("autoreset_mode")
    try:
        return AutoresetMode(mode)
    except ValueError:
        modes = ", ".join(f"AutoresetMode.{known.name}" for known in AutoresetMode)
        raise ConfigError(
            f"{name} has metadata['autoreset_mode']={mode!r}, which does not say which rows end an episode. "
            f"Set it to one of {modes}."
        ) from None


def _final_value(final: Any, leaf: Leaf, lane: int) -> Any:
    """A lane's part of info['final_obs'], which has arrays with one row per lane, or one object per lane."""
    is_lane = False
    for key in (*leaf.path, None):
        if isinstance(final, np.ndarray) and not is_lane:
            final, is_lane = final[lane], True
        if key is not None:
            final = final[key]
    return final
