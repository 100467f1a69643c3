"""Rollouts: rows of lanes that are learned from once."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from freewheel.errors import ReplayError
from freewheel.memory.lanes import Lanes

Array = np.ndarray[Any, Any]
# Words before a row's fields: {reward, flags}, step, version, priority.
META_WORDS = 4
TERMINATED, TRUNCATED = 1, 2
# Episodes may end at any row, and each look for them costs about as much as four rows do to collect (CartPole, 8 lanes).
LOOKS = 16
# The column of the states' values, which a policy of rollouts adds to every row.
VALUE = "value"


@dataclass(frozen=True)
class Bootstrap:
    """What came back for the newest action of some lanes and is in no row yet: the reward, and the value of the new state."""

    lanes: Array
    reward: Array
    value: Array


@dataclass
class Collected:
    """The rows of a rollout. Arrays [lanes, places] lie in the order of each lane's time; `kept` are the rows learned from.

    Others are final observations, rows that wait for their outcome, and places beyond a lane's newest row. Dicts and
    arrays [N, ...] have the kept rows alone, in the order of `kept`'s True places.
    `next_value` lacks the values of the final observations of truncated episodes, and with `revalues` those of every row after
    a cut: `final_at` says where they belong, and `final_obs` has the observations.
    """

    kept: Array
    reward: Array
    value: Array
    next_value: Array
    terminated: Array
    goes_on: Array  # the next place is the next step of the same episode, and kept
    follows: Array  # the place is not the first step of its episode
    final_at: tuple[Array, Array]
    final_obs: dict[str, Array]
    obs: dict[str, Array]
    action: Array
    columns: dict[str, Array]  # that the policy added, such as log_prob
    lag: Array  # [N]: rollouts since the policy that acted


class _Seen(NamedTuple):
    """Rows of all lanes [lanes, places]: where they lie, what is in them, and what becomes of them; `first` and `used` by lane."""

    first: Array
    numbers: Array
    at: Array
    exists: Array
    flags: Array
    step: Array
    reward: Array
    value: Array
    next_value: Array
    kept: Array
    lost: Array
    stale: Array
    acted_by: Array
    used: Array


# From the number of rows that each lane has to the bootstraps that belong to them.
BootstrapsOf = Callable[[Array], Bootstrap]


class Rollout:
    """One learner's view of the lanes: hands out each row once, `num_rows` at a time.

    A rollout is complete when there are so many rows in all, whichever lanes they come from: lanes of a world that gives
    the ready ones first need not be even, and the slowest holds nobody. A row counts when the outcome of its action is known;
    one whose outcome is still awaited belongs to a later rollout. If the last arrivals are too many, the newest policy's rows, and of
    these the newest of the longest lanes, wait for the next rollout. Where all lanes go in step each gives the same number of rows.

    With `by_episodes` a rollout has the rows of all episodes that have ended, once they are so many; rows of the others wait. An episode of
    more than `longest` rows is handed out in parts.

    Rows are read where they lie; what is learned from is gathered once. Rows that cannot be used are counted: `overwritten` before
    they were read, `stale` because their policy is more than `max_lag` rollouts old, `lost` because their env was
    replaced before the outcome came. With `revalues` the learner values all observations by its own weights.
    """

    def __init__(
        self,
        lanes: Lanes,
        num_rows: int,
        *,
        stack: int = 1,
        max_lag: int = 4,
        revalues: bool = False,
        by_episodes: bool = False,
    ) -> None:
        self.lanes, self.num_rows, self.max_lag, self.revalues = lanes, num_rows, max_lag, revalues
        self.by_episodes, self.longest = by_episodes, (lanes.lane_rows - stack) // 2
        self.available = 0  # rows whose outcome is known, as far as the actor has told
        self.running = 0  # those of episodes that had not ended when it was last looked, which are not available
        self.due = num_rows  # with so many available the next rollout may be complete
        self.overwritten = self.stale = self.lost = 0
        self._stack, self._slots = stack, lanes.lane_rows + 1
        self._base = np.array([lanes.core.base(lane) for lane in range(lanes.num_lanes)], np.int64)
        self._first = self._base.copy()  # of each lane, the oldest row that was not handed out
        memory = mmap.mmap(lanes.segment.core.fd, lanes.segment.num_bytes, access=mmap.ACCESS_READ)
        self._views = _views(lanes, memory)
        spaces = ("obs", "action")
        self._columns = [f.name for f in lanes.spec.fields if f.name.split(".")[0] not in spaces and f.name != VALUE]

    def take(self, version: int, bootstraps: Bootstrap | BootstrapsOf | None = None) -> Collected | None:
        """The next rollout, if it is complete. `version` counts the rollouts that were learned from.

        `bootstraps` are given, or looked up for the rows that each lane has.
        """
        heads = self._heads()
        seen = self._look(heads, version, bootstraps(heads) if callable(bootstraps) else bootstraps)
        if self.by_episodes:
            self.running = self._hold(seen.kept, seen.used, seen.exists & ((seen.flags != 0) | seen.lost))
        over = int(seen.kept.sum()) - self.num_rows
        if over < 0:
            self.available = over + self.num_rows
            self.due = self._due()
            return None
        if self.by_episodes:
            over = 0
        _leave(seen.kept, seen.used, seen.acted_by, over)
        made = self._collected(seen, version)
        self._check_intact(seen.first)
        self._first = seen.first + seen.used
        self.available = over
        self.due = self._due()
        return made

    def _look(self, heads: Array, version: int, bootstrap: Bootstrap | None) -> _Seen:
        """All rows that were not handed out, and which of them can be learned from."""
        first = self._oldest(heads)
        counts = heads - first
        places = np.arange(max(int(counts.max()), 1))
        exists = places < counts[:, None]
        numbers = first[:, None] + places
        at = self._at(np.arange(self.lanes.num_lanes)[:, None], numbers)
        flags, step = self._views["flags"][at] * exists, self._views["step"][at]
        reward, value = _next(self._views["reward"][at]), self._views[VALUE][at]
        next_value = _next(value)
        kept = exists & (flags == 0)
        waits = kept & ~_next(exists)
        if bootstrap is not None:
            has_row = counts[bootstrap.lanes] > 0
            of = (bootstrap.lanes[has_row], counts[bootstrap.lanes[has_row]] - 1)
            reward[of], next_value[of], waits[of] = bootstrap.reward[has_row], bootstrap.value[has_row], False
        kept &= ~waits
        lost = kept & _next(exists) & (_next(step) == 0)
        acted_by = self._views["version"][at]
        # An episode goes by its end, which is handed out as soon as it is there: its beginning may be older.
        stale = kept & (version - acted_by > self.max_lag) & (not self.by_episodes)
        kept &= ~lost & ~stale
        used = np.where(waits.any(1), counts - 1, counts)
        return _Seen(
            first, numbers, at, exists, flags, step, reward, value, next_value, kept, lost, stale, acted_by, used
        )

    def _collected(self, seen: _Seen, version: int) -> Collected:
        """The rows that are handed out; those that were left out are counted."""
        kept, numbers, step, at = seen.kept, seen.numbers, seen.step, seen.at
        handed = np.arange(kept.shape[1]) < seen.used[:, None]
        self.lost += int((seen.lost & handed).sum())
        self.stale += int((seen.stale & handed).sum())
        self.overwritten += int((seen.first - self._first).sum())
        next_flags = _next(seen.flags)
        valued_later = kept & (next_flags == TRUNCATED)
        if self.revalues:
            valued_later |= kept & ~_next(kept) & _next(seen.exists) & (next_flags == 0)
        lanes, where = np.nonzero(valued_later)
        final = (lanes, where)
        return Collected(
            kept=kept,
            reward=seen.reward * kept,
            value=seen.value * kept,
            next_value=np.where(kept & ~valued_later, seen.next_value, np.float32(0)),
            terminated=kept & (next_flags & TERMINATED != 0),
            goes_on=kept & _next(kept),
            follows=kept & (step > 0),
            final_at=final,
            final_obs=self._obs(final[0], numbers[final] + 1, step[final] + 1),
            obs=self._obs(np.nonzero(kept)[0], numbers[kept], step[kept]),
            action=self._views["action"][at[kept]],
            columns={name: self._views[name][at[kept]] for name in self._columns},
            lag=version - seen.acted_by[kept],
        )

    def skip(self) -> None:
        """Leaves out all rows there are: for a learner that cannot know which of them its predecessor had."""
        heads = self._heads()
        self.lost += int((heads - self._oldest(heads)).sum())
        self._first, self.available, self.running = heads, 0, 0
        self.due = self._due()

    def state(self) -> dict[str, Any]:
        """For a checkpoint, beside the lanes' own rows."""
        counts = {"overwritten": self.overwritten, "stale": self.stale, "lost": self.lost}
        return {"first": self._first.tolist(), "available": self.available, "due": self.due, **counts}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._first = np.array(state["first"], np.int64).reshape(self._base.shape)
        self.available, self.due = int(state["available"]), int(state.get("due", self.num_rows))
        self.overwritten, self.stale, self.lost = (int(state[name]) for name in ("overwritten", "stale", "lost"))

    def metrics(self) -> dict[str, float]:
        """Rows that were left out so far, by reason."""
        return {"overwritten_rows": self.overwritten, "stale_rows": self.stale, "lost_rows": self.lost}

    def _due(self) -> int:
        """Episodes that run may end with their next rows, which are then available all at once: looked for some times per rollout."""
        soonest = max(self.num_rows - self.running, self.available + max(self.num_rows // LOOKS, 1))
        return min(soonest, self.num_rows) if self.by_episodes else self.num_rows

    def _hold(self, kept: Array, used: Array, ends: Array) -> int:
        """Takes the rows of episodes that still run out; how many they are."""
        ended = np.where(ends.any(1), ends.shape[1] - ends[:, ::-1].argmax(1), 0)  # places up to the last end
        ended = np.where(used - ended > self.longest, used, ended)
        holds = kept & (np.arange(kept.shape[1]) >= ended[:, None])
        kept &= ~holds
        np.minimum(used, ended, out=used)
        return int(holds.sum())

    def _heads(self) -> Array:
        core = self.lanes.core
        return np.array([core.head(lane) for lane in range(self.lanes.num_lanes)], np.int64)

    def _oldest(self, heads: Array) -> Array:
        """Where each lane can be read from: what a full ring has overwritten is gone, and a stack needs the rows before its own."""
        oldest: Array = np.maximum(self._first, heads - (self._slots - self._stack))
        return oldest

    def _at(self, lanes: Array, numbers: Array) -> Array:
        """The places of these rows among all rows of the memory."""
        at: Array = lanes * self._slots + (numbers - self._base[lanes]) % self._slots
        return at

    def _obs(self, lanes: Array, numbers: Array, step: Array) -> dict[str, Array]:
        """Observations of these rows [n, ...], or [n, stack, ...]: before an episode's first one stands the first itself."""
        if self._stack > 1:
            back = np.minimum(np.arange(self._stack - 1, -1, -1), step[:, None].astype(np.int64))
            lanes, numbers = lanes[:, None], numbers[:, None] - back
        at = self._at(lanes, numbers)
        return {f.name: self._views[f.name][at] for f in self.lanes.spec.fields if f.is_observation}

    def _check_intact(self, first: Array) -> None:
        behind = self._heads() - first
        if (behind > self._slots - self._stack).any():
            raise ReplayError(
                f"lane {int(behind.argmax())} was written over while its rows were read: {int(behind.max())} rows are in "
                f"flight, and it keeps {self.lanes.lane_rows}. Hold the actors back, or give the lanes more rows."
            )


def lane_rows(rows: int, lanes: int, stack: int) -> int:
    """Rows that a lane must keep. In step it writes `rows` in a rollout, and at most as many final observations.

    A lane may be four times as fast as the others before rows are overwritten, and counted.
    """
    return 2 * min(4 * rows, rows * lanes) + stack + 16


def _views(lanes: Lanes, memory: mmap.mmap) -> dict[str, Array]:
    """Each column as an array over the rows of all lanes, one after the other, where they lie."""
    stride = 8 * (META_WORDS + lanes.spec.payload_words)
    count = lanes.num_lanes * (lanes.lane_rows + 1)
    begin = lanes.core.head_bytes()

    def view(dtype: str, offset: int, shape: tuple[int, ...] = ()) -> Array:
        item = np.dtype(dtype)
        inner = np.empty(shape, item).strides
        made: Array = np.ndarray((count, *shape), item, memory, begin + offset, (stride, *inner))
        return made

    found = {"reward": view("float32", 0), "flags": view("uint32", 4)}
    found |= {"step": view("int64", 8), "version": view("int64", 16)}
    offset = 8 * META_WORDS
    for field in lanes.spec.fields:
        found[field.name] = view(field.dtype, offset, field.shape)
        offset += 8 * field.num_words
    return found


def _next(x: Array) -> Array:
    """What stands at the next place of each lane; 0 after the last."""
    made = np.zeros_like(x)
    made[:, :-1] = x[:, 1:]
    return made


def _leave(kept: Array, used: Array, version: Array, over: int) -> None:
    """Takes the newest policy's newest rows of the longest lanes out, so many that the rest is a rollout.

    Older policies first: a lane that is ahead of the others must not wait until its rows are too old.
    """
    if over <= 0:
        return
    lanes, places = np.nonzero(kept)
    rank = kept.cumsum(1)[lanes, places]
    left = np.lexsort((lanes, -rank, -version[lanes, places]))[:over]
    kept[lanes[left], places[left]] = False
    np.minimum.at(used, lanes[left], places[left])
