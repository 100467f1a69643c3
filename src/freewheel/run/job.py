"""What every role of a local run is given: the settings, and the shared memory that joins the roles."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from freewheel.algos.algo import Loss
from freewheel.config import ON_POLICY, Config
from freewheel.learners.ahead import Ahead
from freewheel.learners.forms import Form
from freewheel.learners.pace import Pace, actors_lag
from freewheel.learners.ratio import Governor, Ratio
from freewheel.learners.workers import Team
from freewheel.memory.counter import Counters
from freewheel.memory.lanes import Lanes
from freewheel.memory.tails import Tails
from freewheel.report.ledger import Ledger
from freewheel.run.layout import Layout
from freewheel.run.placing import Placing
from freewheel.spec import Space
from freewheel.weights.board import Board

SUPERVISOR, LEARNER = 0, 1
FIRST_ACTOR = 2


@dataclass
class Job:
    """Goes to a child process as an argument. Shared memory belongs to the supervisor and outlives every role."""

    config: Config
    env: Any
    body: Any
    loss: Loss | None
    obs_space: Space
    action_space: Space
    layout: Layout
    lanes: Lanes
    board: Board
    ledger: Ledger
    counts: Counters
    ratio: Ratio
    slack_steps: int
    checkpoints: Path
    began_s: float  # of the run, on the monotonic clock that all processes share
    parent: int
    owner: str
    form: Form = field(default_factory=Form)
    why_form: str = ""
    form_key: str = ""  # under which more is remembered of it
    why_precision: str = ""
    why_world: str = ""
    device: str = "cpu"  # of the learner
    placing: Placing = field(default_factory=lambda: Placing(("cpu",), ()))
    team: Team | None = None
    ahead: Ahead | None = None
    tails: Tails | None = None  # of on-policy lanes
    resumed_at: int = 0  # steps of the run's earlier life

    @property
    def precision(self) -> str:
        return self.form.precision

    @property
    def folder(self) -> Path:
        return self.checkpoints.parent

    def close(self) -> None:
        """Nothing to do: shared memory goes with the last that holds it."""

    @property
    def is_on_policy(self) -> bool:
        """Which actors and learner its processes are."""
        return self.config.algo in ON_POLICY

    def governor(self) -> Governor:
        if self.is_on_policy:
            lanes = self.lanes.num_lanes
            return Pace(
                self.counts, self.ratio, self.config.rollout.rows * lanes, lanes, max_lag=actors_lag(self.config)
            )
        return Governor(self.counts, self.ratio, self.slack_steps, self.config.local.free)

    def lanes_of(self, actor: int) -> range:
        first = sum(self.layout.lanes_per_actor[:actor])
        return range(first, first + self.layout.lanes_per_actor[actor])
