"""Copies of an env in one process, stepped one after the other."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from freewheel._core import put_row, step_lanes
from freewheel.errors import ConfigError
from freewheel.worlds.actions import actions_of
from freewheel.worlds.check import (
    Find,
    Leaf,
    Where,
    close_all,
    fill,
    obs_leaves,
    parts_of,
    read_flags,
    read_reset,
    read_rewards,
    refuse_step,
)
from freewheel.worlds.image import LIFE_LOST
from freewheel.worlds.lives import end_lives
from freewheel.worlds.seeds import episode_seed, lane_key
from freewheel.worlds.world import TERMINATED, TIMEOUT_S, TRUNCATED, Array, Columns, Ended, Group, Obs, Ready

# Actions kept of each lane's episode, to play it again on resume. Longer than any Atari episode; bounds the memory of
# an env whose episodes never end.
KEPT_ACTIONS = 200_000
NONE_ENDED, LOOK_CLOSELY = 0, 2  # what step_lanes says: no episode ended; something is not plain


class InlineWorld:
    """One lane per env. recv steps the envs that were sent an action; one that ends an episode is reset at once.

    Every episode has its own seed, so its actions are all that is needed to come back to any point of it.
    `owns_envs=False` leaves the envs open for whoever made them.

    As a part of a larger world it steps `lanes` of that and keeps its newest rows in the arrays it is given. With
    `resets_at_once` a lane whose episode ended comes in a later recv, and so many of them are reset by each.
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
        self.name = name
        self.num_lanes = len(envs)
        self.obs_space = envs[0].observation_space
        self.action_space = envs[0].action_space
        self.groups = (Group("", self.obs_space, self.action_space, self.num_lanes),)
        self._leaves = obs_leaves(name, self.obs_space, self.action_space)
        self._actions = actions_of(self.action_space)
        self._apart = self._actions.apart
        _check_alike(name, envs)
        self._envs = list(envs)
        self._owns_envs = owns_envs
        self._steps: list[Any] = [env.step for env in envs]
        self._ends_lives = envs[0].has_wrapper_attr("ends_lives") and envs[0].get_wrapper_attr("ends_lives")
        self._names = list(lanes or range(self.num_lanes))
        self.resets_at_once = resets_at_once
        self.reset_s = 0.0  # that a reset took lately
        self._keys = [lane_key(seed, lane) for lane in self._names]
        self._episodes = [-1] * self.num_lanes
        self._seeds = [0] * self.num_lanes
        self._histories: list[deque[Any]] = [deque(maxlen=KEPT_ACTIONS) for _ in envs]
        self._logs: list[Any] = [self._actions.logger(history) for history in self._histories]
        self._order = list(range(self.num_lanes))
        self._ids = np.arange(self.num_lanes)
        self._keep_rows(rows)
        self._plain = _plain_field(self._leaves)
        self._pending: dict[int, Any] = {}  # lane -> the action it was sent
        # Lanes that recv gives without a step, and whether they begin an episode first.
        self._fresh = dict.fromkeys(range(self.num_lanes), True)

    def _keep_rows(self, rows: tuple[Obs, Array, Array] | None) -> None:
        # The newest observation, reward and first of every lane, by lane.
        kept: tuple[Obs, Array, Array] = rows or (
            {leaf.name: np.zeros((self.num_lanes, *leaf.shape), leaf.dtype) for leaf in self._leaves},
            np.zeros(self.num_lanes, np.float32),
            np.zeros(self.num_lanes, np.bool_),
        )
        self._obs, self._reward, self._first = kept
        self._flags = np.zeros(self.num_lanes, np.uint8)

    def send(self, group: int, lanes: Array, actions: Columns) -> None:
        if lanes is self._ids and not self._pending and not self._fresh:  # all at once, as they came
            self._pending = dict(zip(self._order, self._apart(actions), strict=True))
            return
        ids, num_before = lanes.tolist(), len(self._pending)
        self._pending.update(zip(ids, self._apart(actions), strict=True))
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

    def step_only(self, actions: Columns) -> Ready:
        """What send and recv do of a world with one lane, in one call."""
        return self._step(self._order, self._apart(actions))

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
        except Exception as error:
            raise self._where(lanes[len(results)]).raised("step", error) from error
        if found == LOOK_CLOSELY:
            self._read_results(lanes, results, obs, reward, flags)
        first.fill(False)
        ready = Ready(ids, obs, reward, first, None)
        lost = ids[[LIFE_LOST in info for *_, info in results]] if self._ends_lives else None
        if found != NONE_ENDED and np.count_nonzero(flags):
            over = flags.nonzero()[0]  # numbers are quicker to take by than a mask or a list
            ready.ended = _ends(ready, over, flags)
            if self.resets_at_once is not None and len(over) < len(lanes):
                if lost is not None:
                    end_lives(ready, lost)
                return self._put_off(ready, over)
            self._begin_again(ready, over)
        if obs is not self._obs:
            for name, rows in obs.items():
                self._obs[name][ids] = rows
            self._reward[ids], self._first[ids] = reward, first
        if lost is not None:
            end_lives(ready, lost)
            self._reward[ids], self._first[ids] = ready.reward, ready.first
        return ready

    def _read_results(self, lanes: list[int], results: list[Any], obs: Obs, reward: Array, flags: Array) -> None:
        """Reads what the envs of these lanes returned, and refuses what is not as their spaces say."""

        def find(i: int) -> Where:
            return self._where(lanes[i])

        try:
            observed, rewards, terminated, truncated, _ = zip(*results, strict=True)
        except (TypeError, ValueError):
            refuse_step(results, find)
        self._read(observed, obs, find)
        read_rewards(rewards, reward, find)
        flags[:] = TERMINATED * np.array(read_flags("terminated", terminated, find), np.uint8)
        flags += TRUNCATED * np.array(read_flags("truncated", truncated, find), np.uint8)

    def close(self) -> None:
        envs, self._envs = self._envs, []
        if self._owns_envs:
            close_all(self.name, envs)

    def state(self) -> dict[str, Array]:
        """Each lane's episode as its seed and the actions taken so far, and the observation these must lead to."""
        taken = [action for history in self._histories for action in history]
        return {
            "episode": np.array(self._episodes),
            "seed": np.array(self._seeds),
            "num_taken": np.array([len(history) for history in self._histories]),
            **self._actions.together("taken", taken),
            "pending": np.array(list(self._pending), np.int64),
            **self._actions.together("pending_action", list(self._pending.values())),
            "begins": np.array([self._fresh.get(lane, False) for lane in self._order]),
            "reward": self._reward.copy(),
            "first": self._first.copy(),
            **{name: rows.copy() for name, rows in self._obs.items()},
        }

    def set_state(self, state: dict[str, Array] | None) -> list[int]:
        """Plays each lane's episode again and compares what it sees bit for bit."""
        self._pending.clear()
        self._fresh = dict.fromkeys(self._order, True)
        if state is None:
            return []
        if not self._is_ours(state):
            # Go on with episodes that were not played before.
            self._episodes = [int(state["episode"].max())] * self.num_lanes
            return []
        self._episodes = state["episode"].tolist()
        starts = np.cumsum(state["num_taken"]) - state["num_taken"]
        taken = self._apart(_named("taken", state))
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
        for lane, action in zip(state["pending"].tolist(), self._apart(_named("pending_action", state)), strict=True):
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
            return False  # the first ones may be lost
        try:
            observed = self._reset(lane, seed)
            for action in taken:
                log(action)
                observed, _, terminated, truncated, _ = step(action)
                if terminated or truncated:
                    return False
            seen = self._read([observed], self._rows(1), lambda _: self._where(lane))
        except Exception:
            return False  # an env that went another way may fail on it; the lane begins again
        for name, rows in seen.items():
            self._obs[name][lane] = rows[0]
        return all(rows.tobytes() == goal[name].tobytes() for name, rows in seen.items())

    @property
    def num_fresh(self) -> int:
        """Lanes that the next recvs give without a step."""
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

    def _begin_again(self, ready: Ready, over: Array) -> None:
        """Puts the first rows of the next episodes in the place of the final ones."""
        self._begin(ready.lanes.take(over).tolist(), ready.obs, over.tolist())
        ready.reward[over], ready.first[over] = 0, True

    def _put_off(self, ready: Ready, over: Array) -> Ready:
        """The lanes that go on; the others come when they are reset."""
        self._fresh.update(dict.fromkeys(ready.lanes.take(over).tolist(), True))
        on = np.delete(np.arange(len(ready.lanes)), over)
        lanes, obs = ready.lanes.take(on), {name: rows.take(on, 0) for name, rows in ready.obs.items()}
        reward, first = ready.reward.take(on), ready.first.take(on)
        for name, rows in obs.items():
            self._obs[name][lanes] = rows
        self._reward[lanes], self._first[lanes] = reward, first
        return Ready(lanes, obs, reward, first, ready.ended)

    def _begin(self, lanes: list[int], obs: Obs, places: list[int]) -> None:
        """Begins the next episodes of these lanes, and puts their first observations there."""
        began_s = time.perf_counter()
        for lane, place in zip(lanes, places, strict=True):
            self._episodes[lane] += 1
            observed = self._reset(lane, episode_seed(self._keys[lane], self._episodes[lane]))
            if self._plain is None or not put_row(observed, obs[self._plain], place):
                self._read_one(lane, observed, obs, place)
        self.reset_s = (time.perf_counter() - began_s) / len(lanes)

    def _read_one(self, lane: int, observed: Any, obs: Obs, place: int) -> None:
        for name, rows in self._read([observed], self._rows(1), lambda _: self._where(lane)).items():
            obs[name][place] = rows[0]

    def _reset(self, lane: int, seed: int) -> Any:
        self._seeds[lane] = seed
        self._histories[lane].clear()
        try:
            result = self._envs[lane].reset(seed=seed)
        except Exception as error:
            raise self._where(lane).raised("reset", error) from error
        return read_reset(result, self._where, lane)

    def _rows(self, count: int) -> Obs:
        return {leaf.name: np.empty((count, *leaf.shape), leaf.dtype) for leaf in self._leaves}

    def _read(self, observed: Sequence[Any], out: Obs, find: Find) -> Obs:
        for leaf in self._leaves:
            fill(leaf, parts_of(leaf, observed, find) if leaf.path else observed, out[leaf.name], find)
        return out

    def _where(self, lane: int) -> Where:
        return Where(self.name, self._names[lane], len(self._histories[lane]), self._seeds[lane])


def _ends(ready: Ready, over: Array, flags: Array) -> Ended:
    """A copy of the final rows among these."""
    obs, ends = {name: rows.take(over, 0) for name, rows in ready.obs.items()}, flags.take(over)
    return Ended(ready.lanes.take(over), obs, ready.reward.take(over), ends & TERMINATED != 0, ends & TRUNCATED != 0)


def _plain_field(leaves: Sequence[Leaf]) -> str | None:
    """The field of observations that are one array, which the core reads itself."""
    leaf = leaves[0]
    return leaf.name if leaf.shape and not leaf.path and leaf.bounds is None else None


def _named(prefix: str, state: dict[str, Array]) -> Columns:
    """The actions that a state keeps under this name, by the names of the row's fields."""
    return {"action" + name.removeprefix(prefix): column for name, column in state.items() if name.startswith(prefix)}


def _check_alike(name: str, envs: Sequence[gymnasium.Env[Any, Any]]) -> None:
    for lane, env in enumerate(envs):
        if any(env is other for other in envs[:lane]):
            raise ConfigError(f"{name} gave the same env for two lanes. Let the factory make a new one at each call.")
        for kind in ("observation_space", "action_space"):
            mine, theirs = getattr(env, kind), getattr(envs[0], kind)
            if mine != theirs:
                raise ConfigError(
                    f"{name}: lane {lane} has the {kind} {mine}, lane 0 has {theirs}. All lanes share one."
                )
