"""The counts of a run in shared memory: steps, updates and the stop, for all roles to see and to sleep by."""

from __future__ import annotations

from freewheel.memory.counter import Counters

# Of each policy. SEEN and ALLOWED belong to rollouts: outcomes that the learner can see, and how many there may be.
STEPS, UPDATES, SEEN, ALLOWED = range(4)
PER_POLICY = 4
# A role that waits looks this often whether the run ends, and shows that it lives.
WAIT_S = 0.25


class RunCounts:
    """Of the whole run: a place for each policy's counts, and the stop. Goes to child processes."""

    def __init__(self, num_policies: int) -> None:
        self.num_policies = num_policies
        self.counters = Counters(num_policies * PER_POLICY + 1)
        self._stop = num_policies * PER_POLICY

    def of(self, policy: int) -> Counts:
        return Counts(self, policy)

    @property
    def steps(self) -> int:
        """Of all policies together."""
        return self.counters.value(STEPS) if self.num_policies == 1 else self._sum(STEPS)

    @property
    def updates(self) -> int:
        return self.counters.value(UPDATES) if self.num_policies == 1 else self._sum(UPDATES)

    def _sum(self, index: int) -> int:
        total = self.counters.value(index)
        for first in range(PER_POLICY, self._stop, PER_POLICY):
            total += self.counters.value(first + index)
        return total

    @property
    def is_stopping(self) -> bool:
        """No more steps are taken."""
        return self.counters.value(self._stop) > 0

    @property
    def is_over(self) -> bool:
        """All actors have ended: no more rows come."""
        return self.counters.value(self._stop) > 1

    def stop(self, level: int = 1) -> None:
        """1: no more steps; 2: all actors have ended."""
        self.counters.add(self._stop, max(level - self.counters.value(self._stop), 0))


class Counts:
    """Those of one policy."""

    def __init__(self, run: RunCounts, policy: int) -> None:
        self.run = run
        self.parts = [run.counters.part(policy * PER_POLICY + i) for i in range(PER_POLICY)]
        self._steps, self._updates = self.parts[STEPS], self.parts[UPDATES]
        self._is_only = run.num_policies == 1
        self.add_steps, self.add_updates = self._steps.add, self._updates.add

    @property
    def steps(self) -> int:
        return self._steps.value

    @property
    def updates(self) -> int:
        return self._updates.value

    @property
    def run_steps(self) -> int:
        """Of all policies together."""
        return self._steps.value if self._is_only else self.run.steps

    def wait(self, index: int, target: int) -> None:
        """Until the count has reached the target, or for a moment."""
        self.parts[index].wait(target, WAIT_S)
