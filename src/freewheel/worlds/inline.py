"""Copies of an env in one process, stepped one after the other."""

from __future__ import annotations

import copy
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from freewheel._core import put_row, step_lanes
from freewheel.errors import RAISED
from freewheel.spec import Space, fields_of, flatten, unflatten
from freewheel.worlds import check
from freewheel.worlds.check import Find, Leaf, Where
from freewheel.worlds.image import LIFE_LOST
from freewheel.worlds.info_mask import mask_at_reset
from freewheel.worlds.seeds import episode_seed, lane_key
from freewheel.worlds.world import TERMINATED, TIMEOUT_S, TRUNCATED, Array, Columns, Ended, Obs, OneGroup, Ready

# Actions kept of each lane's episode, to replay it on resume. More than any Atari episode has; bounds the memory of an env whose
# episodes never end.
KEPT_ACTIONS = 200_000
NONE_ENDED, LOOK_CLOSELY = 0, 2  # results of step_lanes: no episode ended; a result needs the checks in Python
NO_ROWS: Array = np.empty(0, np.int64)


class InlineWorld(OneGroup):
    """One lane per env. recv steps the envs that were sent an action; one that ends an episode is reset at once.

    Every episode has its own seed, so the seed and the actions lead back to any point of it. With `owns_envs=False` the caller
    closes the envs.

    As a part of a larger world it steps that world's `lanes` and keeps its newest rows in the arrays it is given. With
    `resets_at_once` a lane whose episode ended comes in a later recv, and each recv resets at most this many.
    """

    may_rest = True

    def __init__(
        self,
        envs: Sequence[gymnasium.Env[Any, Any]],
        seed: int,
        name: str,
        *,
        owns_envs: bool = True,
        lanes: Sequence[int] | None = None,
        rows: tuple[Obs, Array, Array] | None = None,
        resets_at_once: int | None = None,
    ) -> None:
        super().__init__(name, envs[0].observation_space, envs[0].action_space, len(envs))
        self._leaves = check.obs_leaves(name, self.obs_space, self.action_space)
        self._split = _action_splitter(self.action_space)
        check.check_alike(name, envs)
        self._envs, self._owns_envs = list(envs), owns_envs
        self._steps: list[Any] = [env.step for env in envs]
        self._ends_lives = envs[0].has_wrapper_attr("ends_lives") and envs[0].get_wrapper_attr("ends_lives")
        self._numbers = list(lanes or range(self.num_lanes))  # of the lanes in the larger world
        self.resets_at_once = resets_at_once
        self.reset_s = 0.0  # of one env, in the newest resets
        self._keys = [lane_key(seed, lane) for lane in self._numbers]
        self._episodes = [-1] * self.num_lanes
        self._seeds = [0] * self.num_lanes
        self._histories: list[deque[Any]] = [deque(maxlen=KEPT_ACTIONS) for _ in envs]
        self._logs: list[Any] = [_action_logger(self.action_space, history) for history in self._histories]
        self._order = list(range(self.num_lanes))
        self._ids = np.arange(self.num_lanes)
        # The newest observation, reward and first of every lane.
        zeros: tuple[Array, Array] = np.zeros(self.num_lanes, np.float32), np.zeros(self.num_lanes, np.bool_)
        self._obs, self._reward, self._first = rows or (self._rows(self.num_lanes, np.zeros), *zeros)
        self._flags = np.zeros(self.num_lanes, np.uint8)
        self._plain = _plain_field(self._leaves)
        self._pending: dict[int, Any] = {}  # lane -> the action it was sent
        # Lanes that recv gives without a step, and whether they begin an episode first.
        self._fresh = dict.fromkeys(range(self.num_lanes), True)

    def send(self, group: int, lanes: Array, actions: Columns) -> None:
        if lanes is self._ids and not self._pending and not self._fresh:  # all at once, as they came
            self._pending = dict(zip(self._order, self._split(actions), strict=True))
            return
        ids, num_before = lanes.tolist(), len(self._pending)
        self._pending.update(zip(ids, self._split(actions), strict=True))
        if len(self._pending) != num_before + len(ids) or not self._fresh.keys().isdisjoint(ids):
            raise ValueError(f"{self.name}: send() names a lane among {ids} that does not wait for an action.")

    def recv(self, timeout_s: float = TIMEOUT_S) -> tuple[Ready, ...]:
        """The lanes that were sent an action, after their step; the time limit cannot interrupt an env in this process."""
        if self._fresh:
            return (self._give_fresh(),)
        if not self._pending:
            raise ValueError(f"{self.name}: recv() has no lane to wait for. Send an action to a lane first.")
        ready = self._step(list(self._pending), list(self._pending.values()))
        self._pending.clear()
        return (ready,)

    def first_mask(self) -> Any:
        return mask_at_reset(self._envs[0], episode_seed(self._keys[0], 0))

    def step_only(self, actions: Columns) -> Ready:
        """send and recv of a world with one lane, in one call."""
        return self._step(self._order, self._split(actions))

    def _step(self, lanes: list[int], actions: list[Any]) -> Ready:
        if lanes == self._order:  # results land where they are kept
            ids, steps, logs = self._ids, self._steps, self._logs
            obs, reward, first, flags = self._obs, self._reward, self._first, self._flags
        else:
            ids, steps, logs = np.array(lanes), [self._steps[i] for i in lanes], [self._logs[i] for i in lanes]
            obs, flags = self._rows(len(lanes)), np.empty(len(lanes), np.uint8)
            reward, first = np.empty(len(lanes), np.float32), np.empty(len(lanes), np.bool_)
        results: list[Any] = []
        try:
            if self._plain is None:
                for step, log, action in zip(steps, logs, actions, strict=True):
                    log(action)
                    results.append(step(action))
                found = LOOK_CLOSELY
            else:
                found = step_lanes(steps, logs, actions, results, obs[self._plain], reward, flags)
        except RAISED as error:
            raise self._where(lanes[len(results)]).raised("step", error) from error
        if found == LOOK_CLOSELY:
            self._read_results(lanes, results, obs, reward, flags)
        first.fill(False)
        ready = Ready(ids, obs, reward, first, None)
        over = flags.nonzero()[0] if found != NONE_ENDED else NO_ROWS
        if len(over):
            ready.ended = _ends(ready, over, flags)
        if self._ends_lives:
            ready.end_lives(ids[[LIFE_LOST in info for *_, info in results]])
        if len(over):
            ready = self._next_episodes(ready, over)
        if ready.obs is not self._obs:
            for name, rows in ready.obs.items():
                self._obs[name][ready.lanes] = rows
        if ready.reward is not self._reward:
            self._reward[ready.lanes], self._first[ready.lanes] = ready.reward, ready.first
        return ready

    def _read_results(self, lanes: list[int], results: list[Any], obs: Obs, reward: Array, flags: Array) -> None:
        """Reads what the envs of these lanes returned, and refuses what their spaces do not allow."""

        def find(i: int) -> Where:
            return self._where(lanes[i])

        try:
            observed, rewards, terminated, truncated, _ = zip(*results, strict=True)
        except (TypeError, ValueError):
            check.refuse_step(results, find)
        self._read(observed, obs, find)
        check.read_rewards(rewards, reward, find)
        flags[:] = TERMINATED * np.array(check.read_flags("terminated", terminated, find), np.uint8)
        flags += TRUNCATED * np.array(check.read_flags("truncated", truncated, find), np.uint8)

    def close(self) -> None:
        envs, self._envs = self._envs, []
        if self._owns_envs:
            check.close_all(self.name, envs)

    def state(self) -> dict[str, Array]:
        """Each lane's episode as its seed and its actions so far, and the observation that these must lead to."""
        taken = [action for history in self._histories for action in history]
        return {
            "episode": np.array(self._episodes),
            "seed": np.array(self._seeds),
            "num_taken": np.array([len(history) for history in self._histories]),
            **self._action_columns("taken", taken),
            "pending": np.array(list(self._pending), np.int64),
            **self._action_columns("pending_action", list(self._pending.values())),
            "begins": np.array([self._fresh.get(lane, False) for lane in self._order]),
            "reward": self._reward.copy(),
            "first": self._first.copy(),
            **{name: rows.copy() for name, rows in self._obs.items()},
        }

    def set_state(self, state: dict[str, Array] | None) -> list[int]:
        """Replays each lane's episode and compares the observation bit for bit."""
        self._pending.clear()
        self._fresh = dict.fromkeys(self._order, True)
        if state is None:
            return []
        if not self._is_ours(state):
            # Continue with episodes that were not played before.
            self._episodes = [int(state["episode"].max())] * self.num_lanes
            return []
        self._episodes = state["episode"].tolist()
        starts = np.cumsum(state["num_taken"]) - state["num_taken"]
        taken = self._split(_named("taken", state))
        exact = []
        for lane in self._order:
            if state["begins"][lane]:
                exact.append(lane)
                continue
            own = taken[starts[lane] : starts[lane] + state["num_taken"][lane]]
            if self._replay(lane, int(state["seed"][lane]), own, {name: state[name][lane] for name in self._obs}):
                self._reward[lane], self._first[lane] = state["reward"][lane], state["first"][lane]
                self._fresh[lane] = False
                exact.append(lane)
        for lane, action in zip(state["pending"].tolist(), self._split(_named("pending_action", state)), strict=True):
            if self._fresh[lane] is False:
                del self._fresh[lane]
                self._pending[lane] = action
        return exact

    def _is_ours(self, state: dict[str, Array]) -> bool:
        kept = {**self._obs, "episode": self._ids}
        return all(name in state and state[name].shape == rows.shape for name, rows in kept.items())

    def _replay(self, lane: int, seed: int, taken: list[Any], goal: Obs) -> bool:
        log, step = self._logs[lane], self._steps[lane]
        self._histories[lane].clear()
        if len(taken) == KEPT_ACTIONS:
            return False  # the first actions may be missing
        try:
            observed = self._reset(lane, seed)
            for action in taken:
                log(action)
                observed, _, terminated, truncated, _ = step(action)
                if terminated or truncated:
                    return False
            seen = self._read_one(lane, observed)
        except RAISED:
            return False  # an env that is not deterministic may fail on these actions; the lane begins a new episode
        for name, rows in seen.items():
            self._obs[name][lane] = rows[0]
        return all(rows.tobytes() == goal[name].tobytes() for name, rows in seen.items())

    @property
    def num_fresh(self) -> int:
        """Lanes that the next recv calls give without a step."""
        return len(self._fresh)

    def _give_fresh(self) -> Ready:
        lanes = list(self._fresh)[: self.resets_at_once]
        begin = [lane for lane in lanes if self._fresh[lane]]
        if begin:
            self._begin(begin, self._obs, begin)
            self._reward[begin], self._first[begin] = 0, True
        for lane in lanes:
            del self._fresh[lane]
        if lanes == self._order:
            return Ready(self._ids, self._obs, self._reward, self._first, None)
        ids = np.array(lanes)
        obs = {name: rows[ids] for name, rows in self._obs.items()}
        return Ready(ids, obs, self._reward[ids], self._first[ids], None)

    def _next_episodes(self, ready: Ready, over: Array) -> Ready:
        """Puts the first rows of new episodes where these ended, or leaves these lanes to later recv calls."""
        lanes = ready.lanes[over].tolist()
        if self.resets_at_once is None or len(lanes) == len(ready.lanes):
            self._begin(lanes, ready.obs, over.tolist())
            ready.reward[over], ready.first[over] = 0, True
            return ready
        self._fresh.update(dict.fromkeys(lanes, True))
        on = np.delete(np.arange(len(ready.lanes)), over)
        obs = {name: rows[on] for name, rows in ready.obs.items()}
        return Ready(ready.lanes[on], obs, ready.reward[on], ready.first[on], ready.ended)

    def _begin(self, lanes: list[int], obs: Obs, places: list[int]) -> None:
        """Begins the next episodes of these lanes, and writes their first observations into these rows."""
        began_s = time.perf_counter()
        for lane, place in zip(lanes, places, strict=True):
            self._episodes[lane] += 1
            observed = self._reset(lane, episode_seed(self._keys[lane], self._episodes[lane]))
            if self._plain is None or not put_row(observed, obs[self._plain], place):
                for name, rows in self._read_one(lane, observed).items():
                    obs[name][place] = rows[0]
        self.reset_s = (time.perf_counter() - began_s) / len(lanes)

    def _read_one(self, lane: int, observed: Any) -> Obs:
        return self._read([observed], self._rows(1), lambda _: self._where(lane))

    def _reset(self, lane: int, seed: int) -> Any:
        self._seeds[lane] = seed
        self._histories[lane].clear()
        try:
            result = self._envs[lane].reset(seed=seed)
        except RAISED as error:
            raise self._where(lane).raised("reset", error) from error
        return check.read_reset(result, self._where, lane)

    def _rows(self, count: int, make: Callable[..., Array] = np.empty) -> Obs:
        return {leaf.name: make((count, *leaf.shape), leaf.dtype) for leaf in self._leaves}

    def _read(self, observed: Sequence[Any], out: Obs, find: Find) -> Obs:
        for leaf in self._leaves:
            check.fill(leaf, check.parts_of(leaf, observed, find) if leaf.path else observed, out[leaf.name], find)
        return out

    def _action_columns(self, prefix: str, actions: Sequence[Any]) -> Columns:
        rows = [flatten(prefix, self.action_space, action) for action in actions]
        return {
            field.name: np.array([row[field.name] for row in rows], field.dtype).reshape(-1, *field.shape)
            for field in fields_of(prefix, self.action_space)
        }

    def _where(self, lane: int) -> Where:
        return Where(self.name, self._numbers[lane], len(self._histories[lane]), self._seeds[lane])


def _action_splitter(space: Space) -> Callable[[Columns], list[Any]]:
    """From columns to one action per row, which the env may keep and write into."""
    names, dtypes = zip(*((field.name, np.dtype(field.dtype)) for field in fields_of("action", space)), strict=True)
    if not isinstance(space, (spaces.Dict, spaces.Tuple)):
        # Discrete actions are NumPy scalars, as sample() gives them: Gymnasium 1.4 takes twice as long to check an int.
        return lambda columns: list(np.array(columns["action"], dtypes[0]))

    def split(columns: Columns) -> list[Any]:
        own = [np.array(columns[name], dtype) for name, dtype in zip(names, dtypes, strict=True)]
        return [unflatten("action", space, dict(zip(names, row, strict=True))) for row in zip(*own, strict=True)]

    return split


def _action_logger(space: Space, history: deque[Any]) -> Callable[[Any], None]:
    """Appends a copy of an action to the history: the env may write into the action."""
    if isinstance(space, spaces.Discrete):
        return history.append
    own = np.ndarray.copy if space.shape else copy.deepcopy  # nested, or a NumPy scalar
    return lambda action: history.append(own(action))


def _ends(ready: Ready, over: Array, flags: Array) -> Ended:
    """A copy of the final rows among these."""
    obs, ends = {name: rows[over] for name, rows in ready.obs.items()}, flags[over]
    return Ended(ready.lanes[over], obs, ready.reward[over], ends & TERMINATED != 0, ends & TRUNCATED != 0)


def _plain_field(leaves: Sequence[Leaf]) -> str | None:
    """The field of observations that are one array, which the core can read; None for others."""
    leaf = leaves[0]
    return leaf.name if leaf.shape and not leaf.path and leaf.bounds is None else None


def _named(prefix: str, state: dict[str, Array]) -> Columns:
    """The actions that a state keeps under this prefix, with the names of a row's fields."""
    return {"action" + name.removeprefix(prefix): column for name, column in state.items() if name.startswith(prefix)}
