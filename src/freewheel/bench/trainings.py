"""Trainings that are measured: one side's with one layout, each window of it in a process of its own."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from freewheel.bench.child import Child, PeerFailed, Program
from freewheel.bench.harness import median, shown
from freewheel.bench.worker.dqn_settings import BATCH, STEPS_PER_UPDATE

# Compiling 8 updates of IQN took more than three minutes on a machine whose cores were both taken.
TRAIN_TIMEOUT_S = 600.0
# The ratio that is to be held; a training that is further off is another one, and does not count.
RATIO_TOLERANCE = 0.05

Figures = dict[str, Any]


@dataclass(frozen=True)
class Pace:
    """How much is learned: the rows of one update, and the steps that there are for each.

    Where learning goes by rollouts while others are being collected, steps and updates of a window can be `slack_steps` apart.
    """

    rows_per_update: float
    steps_per_update: float
    slack_steps: float = 0.0

    @property
    def ratio(self) -> float:
        return self.rows_per_update / self.steps_per_update


DQN_PACE = Pace(BATCH, STEPS_PER_UPDATE)


@dataclass
class Configuration:
    """One side's training in one layout, and what its windows gave."""

    kind: str  # the training: dqn, per, iqn, ppo/CartPole-v1/8 ...
    side: str  # whose it is
    name: str
    python: Path
    module: str
    order: dict[str, Any]
    windows: list[Figures] = field(default_factory=list)
    problem: str | None = None  # why it is not tried again
    pace: Pace = DQN_PACE
    path: tuple[Path, ...] = ()  # where `module` and what it imports are found, besides what is installed

    @property
    def label(self) -> str:
        return f"{self.kind}: {self.side}, {self.name}"

    def speeds(self) -> list[float]:
        return [window["steps_per_s"] for window in self.windows]

    def speed(self) -> float:
        return median(self.speeds())

    def updates_per_step(self) -> float:
        return median([window["updates_per_step"] for window in self.windows])

    def ratio(self) -> float:
        """Rows drawn per step taken."""
        return self.updates_per_step() * self.pace.rows_per_update

    def holds_ratio(self) -> bool:
        tolerance = RATIO_TOLERANCE
        if self.pace.slack_steps:
            tolerance += self.pace.slack_steps / median([w["steps_per_s"] * w["seconds"] for w in self.windows])
        return abs(self.updates_per_step() * self.pace.steps_per_update - 1) <= tolerance

    def account(self) -> dict[str, Any] | None:
        """Of the newest window that has one."""
        found = [window["account"] for window in self.windows if window.get("account")]
        return found[-1] if found else None

    def record(self) -> dict[str, Any]:
        record = {
            "steps_per_s": shown(self.speed()),
            "updates_per_step": shown(self.updates_per_step()),
            "ratio": shown(self.ratio()),
            "startup_s": shown(median([window["startup_s"] for window in self.windows])),
            "windows": len(self.windows),
        }
        account = self.account()
        return {**record, "account": account} if account else record

    def measure(self, warm_s: float, seconds: float, versions: dict[str, str]) -> None:
        """One window in a fresh process; a configuration that fails is reported on stderr and not tried again."""
        if self.problem is not None:
            return
        order = {"op": "train", "warm_s": warm_s, "seconds": seconds, **self.order}
        timeout_s = TRAIN_TIMEOUT_S + warm_s + 3 * seconds
        try:
            with Child(self.label, self._program()) as child:
                versions[self.side] = child.greeting["version"]
                self.windows.append(child.ask(order, timeout_s))
        except PeerFailed as error:
            print(f"{error}\n{self.label} is left out.", file=sys.stderr)
            self.problem = str(error).splitlines()[0]

    def _program(self) -> Program:
        args = self.module, str(self.order["threads"])
        return Program(self.python, "freewheel.bench.worker.train", args, self.path)


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
