"""The ratio governor: rows drawn for training stay in proportion to steps taken, whoever is the faster.

Two counts in shared memory, steps and updates. The learner sleeps until the next call is due; actors sleep when they are ahead by
more than the slack. Both waits are futexes: a waiting role costs nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from freewheel.config import Config
from freewheel.memory.counter import Counters

STEPS, UPDATES, STOP = 0, 1, 2
NUM_COUNTS = 3
# A role that waits looks this often whether the run ends, and shows that it lives.
WAIT_S = 0.25


@dataclass
class Ratio:
    """How many updates belong to how many steps, counted from a point: the end of the warm-up, or where a run went on."""

    samples_per_step: float
    batch_size: int
    updates_per_call: int
    from_step: int
    from_updates: int = 0

    @classmethod
    def of(cls, config: Config) -> Ratio:
        learner = config.learner
        return cls(learner.ratio, learner.batch_size, learner.updates_per_call, config.replay.warmup_rows)

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
        steps = (
            self.from_step + math.ceil(calls * self.steps_per_call) - 1
        )  # rounded, here and in `due`: one too many or too few
        while self.due(steps, updates) <= 0:
            steps += 1
        return steps

    def achieved(self, steps: int, updates: int) -> float:
        """Samples drawn per step since the point it is counted from."""
        taken = steps - self.from_step
        return (updates - self.from_updates) * self.batch_size / taken if taken > 0 else 0.0


class Governor:
    """The ratio over shared counts: what actors and the learner ask before they go on."""

    def __init__(self, counts: Counters, ratio: Ratio, slack_steps: int, is_free: bool = False) -> None:
        self.counts, self.ratio = counts, ratio
        self.slack_steps, self.is_free = slack_steps, is_free

    @property
    def steps(self) -> int:
        return self.counts.value(STEPS)

    @property
    def updates(self) -> int:
        return self.counts.value(UPDATES)

    @property
    def is_stopping(self) -> bool:
        """No more steps are taken."""
        return self.counts.value(STOP) > 0

    @property
    def is_over(self) -> bool:
        """All actors have ended: no more rows come."""
        return self.counts.value(STOP) > 1

    def add_steps(self, n: int) -> None:
        self.counts.add(STEPS, n)

    def add_updates(self, n: int) -> None:
        self.counts.add(UPDATES, n)

    def may_act(self) -> bool:
        return self.is_free or self.steps < self.limit(self.updates)

    def limit(self, updates: int) -> int:
        """Steps that may be taken while so many updates are made."""
        return self.ratio.next_at(updates) + self.slack_steps

    def wait_to_act(self) -> None:
        """Until the learner has caught up, or for a moment."""
        behind = self.steps - self.slack_steps
        # Updates after which `limit` exceeds the steps: sought by calls, since limit rises with each of them.
        ratio = self.ratio
        calls = max(math.floor((behind - ratio.from_step) / ratio.steps_per_call) - 2, 0)
        target = ratio.from_updates + calls * ratio.updates_per_call
        while self.limit(target) <= self.steps:
            target += ratio.updates_per_call
        self.counts.wait(UPDATES, target, WAIT_S)

    def due(self) -> int:
        return self.ratio.due(self.steps, self.updates)

    def wait_to_learn(self) -> None:
        """Until the next call is due, or for a moment."""
        self.counts.wait(STEPS, self.ratio.next_at(self.updates), WAIT_S)


def slack_of(config: Config) -> int:
    """Enough that nobody waits for a hand-over, little enough that training stays as it would be in turn.

    Four calls and turns: with two, an actor that a busy machine held up for some milliseconds held up the learner too.
    """
    if config.local.slack_steps:
        return config.local.slack_steps
    return 4 * (math.ceil(Ratio.of(config).steps_per_call) + config.world.lanes)
