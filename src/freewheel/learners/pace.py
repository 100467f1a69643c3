"""Back-pressure between actors and a learner that learns from each row once: nobody writes over what is still to be read.

Two more counts in shared memory: outcomes that the learner can see, and how many of them there may be. Actors sleep when they have
collected all that is allowed; the learner sleeps until a rollout is complete. Both waits are futexes.
"""

from __future__ import annotations

from freewheel.config import Config
from freewheel.learners.ratio import NUM_COUNTS, WAIT_S, Governor, Ratio
from freewheel.memory.counter import Counters

SEEN, ALLOWED = NUM_COUNTS, NUM_COUNTS + 1
NUM_PACE_COUNTS = NUM_COUNTS + 2


class Pace(Governor):
    """What actors and the learner of an on-policy run ask before they go on.

    Collected is at most what belongs to the rollout that is next to be learned from and `max_lag` more: so no row is learned from
    that is older than that, in versions. With 0 actors stop after each rollout.
    """

    def __init__(self, counts: Counters, ratio: Ratio, num_rows: int, num_lanes: int, max_lag: int) -> None:
        super().__init__(counts, ratio, slack_steps=0)
        self.num_rows = num_rows
        # A lane whose action is on its way when the others have to stop brings one outcome more.
        self.room = (max_lag + 1) * num_rows - (num_lanes if max_lag else 0)

    @property
    def seen(self) -> int:
        return self.counts.value(SEEN)

    @property
    def allowed(self) -> int:
        return self.counts.value(ALLOWED)

    def show(self, n: int) -> None:
        """By an actor: so many more outcomes stand in rows or tails."""
        self.counts.add(SEEN, n)

    def may_go_on(self, pending: int) -> bool:
        """With so many outcomes in hand that were not shown yet."""
        return self.seen + pending < self.allowed

    def wait_to_act(self) -> None:
        self.counts.wait(ALLOWED, self.seen + 1, WAIT_S)

    def allow(self, handed: int) -> None:
        """By the learner, when the weights of this many outcomes are published. What was allowed once stays so."""
        self.counts.add(ALLOWED, max(handed + self.room - self.allowed, 0))

    def wait_for(self, seen: int) -> None:
        """Until the learner can see so many outcomes, or for a moment."""
        self.counts.wait(SEEN, seen, WAIT_S)

    def due(self) -> int:
        """Rollouts that wait for the learner."""
        return max(self.seen - (self.allowed - self.room), 0) // self.num_rows

    def begin(self, steps: int) -> None:
        """Before anything runs: so many steps were taken by the run's earlier life."""
        self.counts.add(SEEN, steps)
        self.allow(steps)


def pace_ratio(config: Config) -> Ratio:
    """Each step belongs to all epochs of its rollout."""
    ppo = config.ppo
    rows = config.rollout.rows * config.world.lanes // ppo.minibatches
    return Ratio(float(ppo.epochs), rows, ppo.epochs * ppo.minibatches, from_step=0)


def actors_lag(config: Config) -> int:
    """Rollouts that actors may be ahead: ppo learns from what its newest policy did."""
    return config.rollout.max_lag if config.algo == "appo" else 0
