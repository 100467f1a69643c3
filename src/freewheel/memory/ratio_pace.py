"""The pace of a replay: rows drawn for training stay in proportion to steps taken, whoever is the faster.

The learner sleeps until the next call is due; actors sleep when they are ahead by
more than the slack. Both waits are futexes: a waiting role costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from freewheel.memory.counts import STEPS, UPDATES, Counts
from freewheel.memory.dials import Dials


@dataclass
class Ratio:
    """How many updates belong to how many steps, counted from a point: the end of the warm-up, or where a run went on."""

    samples_per_step: float
    batch_size: int
    updates_per_call: int
    from_step: float  # a part of a step where the ratio was changed on the way to a call
    from_updates: int = 0

    @property
    def steps_per_call(self) -> float:
        return self.batch_size * self.updates_per_call / self.samples_per_step

    def due(self, steps: int, updates: int) -> int:
        """Updates that are due, whole calls only; negative when there were more than due."""
        samples = max(steps - self.from_step, 0) * self.samples_per_step
        calls = int(samples / (self.batch_size * self.updates_per_call))
        return calls * self.updates_per_call - (updates - self.from_updates)

    def next_at(self, updates: int) -> int:
        """The steps at which the call after so many updates is due."""
        calls = (updates - self.from_updates) // self.updates_per_call + 1
        whole = math.floor(self.from_step)
        # Rounded, here and in `due`: one too many or too few.
        steps = whole + math.ceil(calls * self.steps_per_call + (self.from_step - whole)) - 1
        while self.due(steps, updates) <= 0:
            steps += 1
        return steps

    def achieved(self, steps: int, updates: int) -> float:
        """Samples drawn per step since the point it is counted from."""
        taken = steps - self.from_step
        return (updates - self.from_updates) * self.batch_size / taken if taken > 0 else 0.0


class RatioPace:
    """What actors and the learner of a replay ask before they go on. Where it `is_lockstep` the learner catches up after each turn.

    The dial `ratio` takes the place of the settings' ratio from the step at which it was set.
    """

    def __init__(
        self, counts: Counts, ratio: Ratio, slack_steps: int, *, is_free: bool = False, dials: Dials | None = None
    ) -> None:
        self.counts, self.ratio, self._warmup_rows = counts, ratio, ratio.from_step
        self._settings_ratio, self._first = ratio.samples_per_step, (ratio.from_step, ratio.from_updates)
        self.slack_steps, self.is_free = slack_steps, is_free
        self._dials, self._dial_version = dials, -1
        self._steps, self._updates = counts.parts[STEPS], counts.parts[UPDATES]
        self._limit = 0  # steps that actors may take, as it was last worked out; it only rises while the ratio stays
        self._next_call, self._next_after = 0, -1  # steps at which a call is due, after so many updates

    def may_answer(self, pending: int) -> bool:
        if self.is_free:
            return True
        self._read_dial()
        steps = self._steps.value
        if steps >= self._limit:
            self._limit = self.limit(self._updates.value)
        return steps < self._limit

    def limit(self, updates: int) -> int:
        """Steps that may be taken while so many updates are made."""
        self._read_dial()
        return self.ratio.next_at(updates) + self.slack_steps

    def show(self, n: int) -> None:
        """Rows are sampled wherever they are: nobody waits for one of them."""

    def wait_to_act(self) -> None:
        """Until the learner has caught up, or for a moment."""
        steps, ratio = self.counts.steps, self.ratio
        behind = steps - self.slack_steps
        # Updates after which `limit` exceeds the steps: sought by calls, since limit rises with each of them.
        calls = max(math.floor((behind - ratio.from_step) / ratio.steps_per_call) - 2, 0)
        target = ratio.from_updates + calls * ratio.updates_per_call
        while self.limit(target) <= steps:
            target += ratio.updates_per_call
        self.counts.wait(UPDATES, target)

    def due(self) -> bool:
        self._read_dial()
        updates = self._updates.value
        if updates == self._next_after:
            return self._steps.value >= self._next_call
        if self.ratio.due(self._steps.value, updates) > 0:
            return True
        # Not yet: the steps at which it is are worked out once, since actors' turns ask again and again.
        self._next_call, self._next_after = self.ratio.next_at(updates), updates
        return False

    def backlog(self) -> int:
        """Updates that are due."""
        self._read_dial()
        return self.ratio.due(self.counts.steps, self.counts.updates)

    def wait_to_learn(self) -> None:
        """Until the next call is due, or for a moment."""
        self.counts.wait(STEPS, self.ratio.next_at(self.counts.updates))

    def share_done(self, all_steps: int) -> float:
        return min(self.counts.run_steps / all_steps, 1.0)

    def begin(self, is_again: bool) -> None:
        """Before the first lesson of a learner's life."""

    def learned(self, updates: int, memory: object) -> None:
        """After a lesson, when its weights are published."""
        self.counts.add_updates(updates)

    @property
    def first_due(self) -> int:
        """Steps of the policy before the first update."""
        return self.ratio.next_at(self.ratio.from_updates)

    def achieved(self) -> float:
        return self.ratio.achieved(self.counts.steps, self.counts.updates)

    def since(self, ratio: float | None) -> tuple[float, int]:
        """From where another ratio is counted. What was collected towards the next call still counts, at the new ratio; calls that the
        learner owes are dropped.
        """
        self._read_dial()
        held, steps, updates = self.ratio, self.counts.steps, self.counts.updates
        call = held.batch_size * held.updates_per_call
        begun = max(steps - held.from_step, 0.0) * held.samples_per_step
        begun = max(begun - (updates - held.from_updates) * held.batch_size, 0.0) % call
        return steps - begun / (self._settings_ratio if ratio is None else ratio), updates

    @property
    def target(self) -> float:
        """The ratio that is held."""
        return self.ratio.samples_per_step

    def state(self) -> dict[str, float]:
        return {"from_step": self.ratio.from_step, "from_updates": self.ratio.from_updates}

    def counted_from(self) -> dict[str, Any]:
        """What every role of a resumed run has to know."""
        return self.state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """`counted_from` of another process, or nothing."""
        if state:
            step, updates = float(state["from_step"]), int(state["from_updates"])
            if not (0 <= step < math.inf and updates >= 0):
                raise ValueError(f"from_step={step} and from_updates={updates} must not be below 0")
            self._count_from(int(step) if step.is_integer() else step, updates)

    def before_save(self, memory: object) -> None:
        """There is nothing to note in the replay."""

    def resume(self, state: Mapping[str, Any], memory: object | None) -> list[str]:
        """Goes on as a checkpoint says, or where the rows are not there warms up again, without a burst after it."""
        if memory is not None:
            self.set_state(state)
            self._move_dial()
            return []
        self._count_from(self.counts.steps + self._warmup_rows, self.counts.updates)
        self._move_dial()
        return ["the replay was not saved and is collected again (checkpoint.replay saves it)"]

    def _count_from(self, step: float, updates: int) -> None:
        self._first = self.ratio.from_step, self.ratio.from_updates = step, updates
        self._limit, self._next_after = 0, -1

    def _move_dial(self) -> None:
        """The dial of a run's earlier life counts from where this pace does."""
        if self._dials is not None and (value := self._dials.value("ratio")) is not None:
            self._dials.set("ratio", value, self._first)

    def _read_dial(self) -> None:
        if self._dials is None or self._dials.version == self._dial_version:
            return
        self._dial_version = self._dials.version
        self._limit, self._next_after = 0, -1
        since = self._dials.since("ratio")
        if since is None:
            return
        asked = self._dials.value("ratio")
        self.ratio.samples_per_step = self._settings_ratio if asked is None else asked
        # What was due by the ratio of before is not made good by the other. A warm-up is not cut short.
        self.ratio.from_step, self.ratio.from_updates = max(since[0], self._first[0]), since[1]


def slack_of(ratio: Ratio, lanes: int) -> int:
    """Enough that nobody waits for a hand-over, little enough that training stays as it would be in sequential.

    Four calls and turns: with two, an actor that a busy machine held up for some milliseconds held up the learner too.
    """
    return 4 * (math.ceil(ratio.steps_per_call) + lanes)
