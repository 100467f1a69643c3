"""Rollouts: rows of lanes that are learned from in epochs of minibatches, then thrown away."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from freewheel.contracts import Array, Batch, Draws
from freewheel.memory.first_look import FirstLook
from freewheel.memory.lanes import VALUE, Bootstrap, Bootstraps, Lanes, Reader, Rows, as_tensors, next_place
from freewheel.memory.nested import Drawn, filled, leaves

TERMINATED, TRUNCATED = 1, 2  # bits of a row's flags
# Episodes may end at any row, and each look for them costs about as much as four rows do to collect (CartPole, 8 lanes).
LOOKS = 16
NO_DRAWS: list[Draws] = [{}]


@dataclass
class Collected:
    """The rows of a rollout. Arrays [lanes, places] lie in the order of each lane's time; `kept` are the rows learned from.

    Others are final observations, rows that wait for their outcome, and places beyond a lane's newest row. Dicts and
    arrays [N, ...] have the kept rows alone, in the order of `kept`'s True places.
    `next_value` lacks the values of the final observations of truncated episodes, and with `revalues` the values of every row
    after a cut: `final_at` says where they belong, and `final_obs` has the observations.
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

    def batch(self, columns: Mapping[str, Array]) -> dict[str, Any]:
        """The kept rows as tensors: obs, action and these columns, a number for each row."""
        made = {"obs": as_tensors(self.obs), "action": torch.from_numpy(self.action)}
        return made | {name: torch.from_numpy(np.ascontiguousarray(column)) for name, column in columns.items()}


class _Choice(NamedTuple):
    """What becomes of the rows [lanes, places]; `used`, by lane, are handed out."""

    kept: Array
    lost: Array
    stale: Array
    used: Array


class Rollout:
    """One learner's view of the lanes: hands out each row once, `num_rows` at a time.

    A rollout is complete when there are so many rows in all, from whichever lanes: lanes of a world that gives
    the ready ones first need not be even, and no lane waits for the slowest. A row counts when the outcome of its action is known;
    one whose outcome is still awaited belongs to a later rollout. If the last arrivals are too many, the newest policy's rows, and of
    these the newest of the longest lanes, wait for the next rollout. Where all lanes go in step each gives the same number of rows.

    With `by_episodes` a rollout has the rows of all episodes that have ended, once they are so many; rows of the others wait. An episode of
    more than `longest` rows is handed out in parts.

    Rows that cannot be used are counted: `overwritten` before they were read, `stale` because their policy is more than
    `max_lag` rollouts old, `lost` because their env was replaced before the outcome came. With `revalues` the learner values
    all observations by its own weights.
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
        self.lanes, self.num_rows, self.stack, self.max_lag = lanes, num_rows, stack, max_lag
        self.revalues, self.by_episodes, self.longest = revalues, by_episodes, (lanes.lane_rows - stack) // 2
        self.available = 0  # rows whose outcome is known, as far as the actor has shown
        self.running = 0  # rows of episodes that had not ended at the last look; they are not available
        self.due = num_rows  # with so many available the next rollout may be complete
        self.overwritten = self.stale = self.lost = 0
        self._reader = Reader(lanes, stack)
        self._first = self._reader.base.copy()  # of each lane, the oldest row that was not handed out
        spaces = ("obs", "action")
        self._added = [f.name for f in lanes.spec.fields if f.name.split(".")[0] not in spaces and f.name != VALUE]

    def take(self, version: int, bootstraps: Callable[[Array], Bootstrap] | None = None) -> Collected | None:
        """The next rollout, if it is complete. `version` counts the rollouts that were learned from.

        `bootstraps` gives the outcomes of lanes that have so many rows.
        """
        heads = self._reader.heads()
        first = self._reader.readable(self._first, heads)
        rows = self._reader.rows(first, heads, bootstraps(heads) if bootstraps is not None else None)
        kept, lost, _, used = choice = self._choose(rows, heads - first, version)
        if self.by_episodes:
            self.running = self._hold(kept, used, rows.exists & ((rows.flags != 0) | lost))
        over = int(kept.sum()) - self.num_rows
        if over < 0:
            self._stand(over + self.num_rows)
            return None
        over = 0 if self.by_episodes else over
        _leave(kept, used, rows.version, over)
        made = self._collected(rows, choice, version)
        self.overwritten += int((first - self._first).sum())
        self._reader.check_intact(first)
        self._first = first + used
        self._stand(over)
        return made

    def _choose(self, rows: Rows, counts: Array, version: int) -> _Choice:
        """Which rows can be learned from."""
        kept = rows.exists & (rows.flags == 0) & ~rows.waits
        lost = kept & next_place(rows.exists) & (next_place(rows.step) == 0)
        # An episode goes by its end, which is handed out as soon as it is there: its beginning may be older.
        stale = kept & (version - rows.version > self.max_lag) & (not self.by_episodes)
        kept &= ~lost & ~stale
        return _Choice(kept, lost, stale, np.where(rows.waits.any(1), counts - 1, counts))

    def _collected(self, rows: Rows, choice: _Choice, version: int) -> Collected:
        """The rows that are handed out; those that were left out are counted."""
        kept, numbers, step = choice.kept, rows.numbers, rows.step
        handed = np.arange(kept.shape[1]) < choice.used[:, None]
        self.lost += int((choice.lost & handed).sum())
        self.stale += int((choice.stale & handed).sum())
        next_flags = next_place(rows.flags)
        valued_later = kept & (next_flags == TRUNCATED)
        if self.revalues:
            valued_later |= kept & ~next_place(kept) & next_place(rows.exists) & (next_flags == 0)
        lanes, places = final = np.nonzero(valued_later)
        columns, at = self._reader.columns, rows.at[kept]
        return Collected(
            kept=kept,
            reward=rows.reward * kept,
            value=rows.value * kept,
            next_value=np.where(kept & ~valued_later, rows.next_value, np.float32(0)),
            terminated=kept & (next_flags & TERMINATED != 0),
            goes_on=kept & next_place(kept),
            follows=kept & (step > 0),
            final_at=(lanes, places),
            final_obs=self._reader.obs(lanes, numbers[final] + 1, step[final] + 1),
            obs=self._reader.obs(np.nonzero(kept)[0], numbers[kept], step[kept]),
            action=columns["action"][at],
            columns={name: columns[name][at] for name in self._added},
            lag=version - rows.version[kept],
        )

    def _hold(self, kept: Array, used: Array, ends: Array) -> int:
        """Takes the rows of episodes that still run out; how many they are."""
        ended = np.where(ends.any(1), ends.shape[1] - ends[:, ::-1].argmax(1), 0)  # places up to the last end
        ended = np.where(used - ended > self.longest, used, ended)
        holds = kept & (np.arange(kept.shape[1]) >= ended[:, None])
        kept &= ~holds
        np.minimum(used, ended, out=used)
        return int(holds.sum())

    def _stand(self, available: int) -> None:
        """Episodes that run may end with their next rows, which are then available all at once: looked for some times per rollout."""
        self.available, self.due = available, self.num_rows
        if self.by_episodes:
            soonest = max(self.num_rows - self.running, available + max(self.num_rows // LOOKS, 1))
            self.due = min(soonest, self.num_rows)

    def skip(self) -> None:
        """Leaves out all rows there are: for a learner that cannot know which of them its predecessor had."""
        heads = self._reader.heads()
        self.lost += int((heads - self._reader.readable(self._first, heads)).sum())
        self._first, self.running = heads, 0
        self._stand(0)

    def state(self) -> dict[str, Any]:
        """For a checkpoint, beside the lanes' own rows."""
        counts = {"overwritten": self.overwritten, "stale": self.stale, "lost": self.lost}
        return {"first": self._first.tolist(), "available": self.available, "due": self.due, **counts}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._first = np.array(state["first"], np.int64).reshape(self._first.shape)
        self.available, self.due = int(state["available"]), int(state.get("due", self.num_rows))
        self.overwritten, self.stale, self.lost = (int(state[name]) for name in ("overwritten", "stale", "lost"))
        if min(self.available, self.due, self.overwritten, self.stale, self.lost) < 0:
            raise ValueError(f"the counts of a rollout must not be below 0: {state}")


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


class RolloutMemory:
    """A lesson is `epochs` passes over a rollout and the `reuse` newest before it, in `minibatches` of equal size each.

    `columns` names what `Algo.prepare` gives beside obs and action, a number for each row. `finish` is given a minibatch before
    it is split any further: what looks at all its rows together belongs there. Epochs end early once the policy has moved by
    `target_kl`, by the `divergence` of the updates' outcomes.
    """

    file, is_always_saved = "rollout.bin", True
    has_priorities = False
    sample_age, oldest_version = 0.0, 0

    def __init__(
        self,
        rollout: Rollout,
        *,
        epochs: int,
        minibatches: int,
        unrolled: int,
        seed: int,
        columns: Sequence[str],
        reuse: int = 0,
        target_kl: float = 0.0,
        first_action: Any = 0,
        finish: Callable[[dict[str, Any]], dict[str, Any]] = lambda minibatch: minibatch,
    ) -> None:
        self.rollout, self.epochs, self.unrolled, self.finish = rollout, epochs, unrolled, finish
        self.generator = torch.Generator().manual_seed(seed)
        self.target_kl = target_kl
        self.is_hurried: Callable[[], bool] = lambda: False
        self.rows_per_minibatch = rollout.num_rows // minibatches
        self.num_samples = self.num_epochs = 0  # of the newest lesson
        self._columns, self._first_action = columns, first_action
        self.warning: str | None = None
        self._first_look = FirstLook(rollout.lanes)
        self._kept: deque[Collected] = deque(maxlen=reuse)  # earlier rollouts, the newest last
        self._lag = self._oldest = 0.0
        # All minibatches have the same number of rows.
        self.has_fixed_size = not rollout.by_episodes and not reuse

    def lesson(self, share_done: float, version: int, bootstraps: Bootstraps | None) -> RolloutLesson | None:
        """The next rollout, if it is complete. `version` is that of the weights as actors know it."""
        rows = self.rollout.take(version, None if bootstraps is None else bootstraps.of)
        if rows is None:
            return None
        self.warning = self.warning or self._first_look(lambda: rows.obs)
        lesson = RolloutLesson(self, [rows, *self._kept])
        self._kept.append(rows)
        self._lag, self._oldest = float(rows.lag.mean()), float(rows.lag.max())
        self.num_samples = self.num_epochs = 0
        return lesson

    def example(self) -> tuple[Batch, Draws]:
        spec, rows = self.rollout.lanes.spec, self.rows_per_minibatch * self.unrolled
        frames = (self.rollout.stack,) if self.rollout.stack > 1 else ()
        obs = {f.name: np.zeros((rows, *frames, *f.shape), f.dtype) for f in spec.fields if f.is_observation}
        action = next(field for field in spec.fields if field.name == "action")
        made: dict[str, Any] = {
            "obs": as_tensors(obs),
            "action": torch.from_numpy(np.full((rows, *action.shape), self._first_action, action.dtype)),
            **{name: torch.zeros(rows) for name in self._columns},
        }
        return self.minibatch(made, torch.arange(rows)), {}

    def minibatch(self, batch: Mapping[str, Any], rows: Tensor) -> dict[str, Any]:
        """These rows as the update takes them: stacked, if it makes several updates a call."""
        return self.finish(_picked(batch, rows, self.unrolled))

    def metrics(self) -> dict[str, float]:
        """`*_rows`: those that were left out so far."""
        own = self.rollout
        counts = {"overwritten_rows": own.overwritten, "stale_rows": own.stale, "lost_rows": own.lost}
        return {"epochs": float(self.num_epochs), "policy_lag": self._lag, "lag": self._oldest, **counts}

    def totals(self) -> dict[str, int]:
        return {}

    def skip(self) -> None:
        self.rollout.skip()

    def lost_on_resume(self) -> list[str]:
        """What a checkpoint does not have."""
        return ["rollouts that were kept to be learned from again are collected again"] if self._kept.maxlen else []

    def state(self) -> dict[str, Any]:
        return {"rollout": self.rollout.state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.rollout.set_state(state["rollout"])

    def close(self) -> None:
        """Nothing to do: rows are read where they lie."""


class RolloutLesson:
    """One rollout and those that are learned from again beside it, the newest first."""

    num_versions = 1

    def __init__(self, memory: RolloutMemory, rows: list[Collected]) -> None:
        self._memory, self.rows = memory, rows
        self._moved: list[Tensor] = []

    def batches(self, prepared: Sequence[Mapping[str, Any]] = ()) -> Iterator[Drawn]:
        batch = prepared[0]
        if len(prepared) > 1:
            batch = filled(batch, map(torch.cat, zip(*map(leaves, prepared), strict=True)))
        memory, count = self._memory, sum(len(rows.lag) for rows in self.rows)
        calls = max(round(count / (memory.rows_per_minibatch * memory.unrolled)), 1)
        for _ in range(memory.epochs):
            self._moved = []
            order = torch.randperm(count, generator=memory.generator)
            for rows in torch.tensor_split(order, calls):
                yield Drawn([memory.minibatch(batch, rows)], NO_DRAWS)
            memory.num_epochs += 1
            memory.num_samples += count
            if memory.is_hurried() or (memory.target_kl and memory.target_kl < torch.cat(self._moved).mean().item()):
                return

    def learned(self, drawn: Drawn, outcomes: Sequence[Any]) -> None:
        if self._memory.target_kl:
            self._moved += [outcome.divergence for outcome in outcomes]


def _picked(batch: Mapping[str, Any], rows: Tensor, unrolled: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in batch.items():
        if isinstance(value, Mapping):
            found[name] = _picked(value, rows, unrolled)
        else:
            part = value.index_select(0, rows)
            found[name] = part if unrolled == 1 else part.view(unrolled, -1, *part.shape[1:])
    return found
