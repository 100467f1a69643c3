"""What every role of a local run is given: the settings, and the shared memory that joins the roles."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from freewheel.algos.algo import Loss
from freewheel.config import Config
from freewheel.learners.ahead import Ahead
from freewheel.learners.ratio import Governor, Ratio
from freewheel.learners.workers import Team
from freewheel.memory.counter import Counters
from freewheel.memory.lanes import Lanes
from freewheel.report.ledger import Ledger
from freewheel.run.layout import Layout
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
    precision: str = "fp32"
    why_precision: str = ""
    why_world: str = ""
    device: str = "cpu"
    team: Team | None = None
    ahead: Ahead | None = None

    @property
    def folder(self) -> Path:
        return self.checkpoints.parent

    def close(self) -> None:
        """Nothing to do: shared memory goes with the last that holds it."""

    def governor(self) -> Governor:
        return Governor(self.counts, self.ratio, self.slack_steps, self.config.local.free)

    def lanes_of(self, actor: int) -> range:
        first = sum(self.layout.lanes_per_actor[:actor])
        return range(first, first + self.layout.lanes_per_actor[actor])
