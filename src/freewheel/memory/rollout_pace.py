"""The pace of rollouts: no row is overwritten before it was learned from, and no row is older than it may be.

Actors sleep when they have collected all that is allowed; the learner sleeps until a rollout is complete. Both waits are futexes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from freewheel.memory.counts import ALLOWED, SEEN, Counts
from freewheel.memory.rollout import RolloutMemory


class RolloutPace:
    """What actors and the learner of rollouts ask before they go on.

    Collected is at most what belongs to the rollout that is next to be learned from and `max_lag` more: so no row is learned from
    that is older than that, in versions. With 0 actors stop after each rollout. Where it `is_lockstep` they stop as soon as the
    learner may find one.
    """

    def __init__(
        self, counts: Counts, num_rows: int, num_lanes: int, max_lag: int, rows_per_update: int, *, is_lockstep: bool
    ) -> None:
        self.counts, self.num_rows, self.is_lockstep = counts, num_rows, is_lockstep
        # A lane whose action is on its way when the others have to stop brings one outcome more.
        self._ahead = (max_lag + 1) * num_rows - (num_lanes if max_lag else 0)
        self._rows_per_update = rows_per_update
        self._seen, self._allowed = counts.parts[SEEN], counts.parts[ALLOWED]
        self._due_at = num_rows  # outcomes with which the next rollout may be complete
        self._from_step = self._from_updates = self._seen_before = self._handed = 0

    @property
    def seen(self) -> int:
        return self._seen.value

    @property
    def allowed(self) -> int:
        return self._allowed.value

    def show(self, n: int) -> None:
        self._seen.add(n)

    def may_answer(self, pending: int) -> bool:
        return self._seen.value + pending < self._allowed.value

    def wait_to_act(self) -> None:
        self.counts.wait(ALLOWED, self.seen + 1)

    def due(self) -> bool:
        self._seen_before = self._seen.value
        return self._seen_before >= self._due_at

    def backlog(self) -> int:
        """Rollouts that wait for the learner."""
        return max(self.seen - (self.allowed - self._ahead), 0) // self.num_rows

    def wait_to_learn(self) -> None:
        self.counts.wait(SEEN, self._due_at)

    def share_done(self, all_steps: int) -> float:
        """As it was when the rollout that is learned from began."""
        return min(max(self.counts.run_steps - self.num_rows, 0) / all_steps, 1.0)

    def begin(self, is_again: bool) -> None:
        """By the learner, at the start of its life: the rows there are were handed out before, or are skipped."""
        self._allow(self.seen, self.num_rows)

    def learned(self, updates: int, memory: RolloutMemory) -> None:
        """When the weights are published: actors may go on. What was allowed once stays so.

        `seen` was looked at before the rollout was, so this is never more than was handed out.
        """
        self.counts.add_updates(updates)
        rollout = memory.rollout
        self._allow(self._seen_before - rollout.available, rollout.due)

    def before_save(self, memory: RolloutMemory) -> None:
        """The rollout of a checkpoint says how many rows wait to be learned from."""
        memory.rollout.available = self.seen - self._handed

    def resume(self, state: Mapping[str, Any], memory: RolloutMemory | None) -> list[str]:
        """Goes on as a checkpoint says; where the rows are not there, with nothing collected."""
        steps = self.counts.steps
        self.show(steps - self.seen)
        self._from_step, self._from_updates = steps, self.counts.updates
        if memory is not None:
            self._allow(steps - memory.rollout.available, memory.rollout.due)
            return []
        self._allow(steps, self.num_rows)
        return ["rows that were not learned from are collected again"]

    def _allow(self, handed: int, due: int) -> None:
        self._handed, self._due_at = handed, handed + due
        most = handed + (due if self.is_lockstep else self._ahead)
        self._allowed.add(max(most - self.allowed, 0))

    def achieved(self) -> float:
        """Rows learned from per step, since this run began or was resumed."""
        updates, steps = self.counts.updates - self._from_updates, self.counts.steps - self._from_step
        return updates * self._rows_per_update / max(steps, 1)

    @property
    def first_due(self) -> int:
        """Steps of the policy before the first update, at least."""
        return self._from_step + self.num_rows

    @property
    def target(self) -> float:
        return 0.0  # nothing is held to one: epochs follow each rollout, and some may be left out

    def state(self) -> dict[str, Any]:
        return {}

    def counted_from(self) -> dict[str, Any]:
        return {"from_step": self._from_step, "from_updates": self._from_updates}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """`counted_from` of another process, or nothing."""
        self._from_step, self._from_updates = int(state.get("from_step", 0)), int(state.get("from_updates", 0))
