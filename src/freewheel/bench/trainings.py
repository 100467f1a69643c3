"""Trainings that are measured: one side's with one layout, each window of it in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from freewheel.bench.child import Child, PeerFailed
from freewheel.bench.harness import median, shown
from freewheel.bench.peers.dqn_settings import BATCH, STEPS_PER_UPDATE

OURS_MODULE = "freewheel.bench.dqn_ours"
# Compiling 8 updates of IQN took more than three minutes on a machine whose cores were both taken.
TRAIN_TIMEOUT_S = 600.0
# The ratio that is to be held; a training that is further off is another one, and does not count.
RATIO_TOLERANCE = 0.05

Figures = dict[str, Any]


@dataclass
class Configuration:
    """One side's training in one layout, and what its windows gave."""

    kind: str  # the training: dqn, per or iqn
    side: str  # whose it is
    name: str
    python: Path
    module: str
    order: dict[str, Any]
    windows: list[Figures] = field(default_factory=list)
    problem: str | None = None  # why it is not tried again

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
        return self.updates_per_step() * BATCH

    def holds_ratio(self) -> bool:
        return abs(self.updates_per_step() * STEPS_PER_UPDATE - 1) <= RATIO_TOLERANCE

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
        """One window in a fresh process; a configuration that fails is told of, and not tried again."""
        if self.problem is not None:
            return
        order = {"op": "train", "warm_s": warm_s, "seconds": seconds, **self.order}
        timeout_s = TRAIN_TIMEOUT_S + warm_s + 3 * seconds
        try:
            with Child(self.label, self.python, "dqn_worker", self.module, str(self.order["threads"])) as child:
                versions[self.side] = child.greeting["version"]
                self.windows.append(child.ask(order, timeout_s))
        except PeerFailed as error:
            print(f"{error}\n{self.label} is left out.", file=sys.stderr)
            self.problem = str(error).splitlines()[0]


def finalists(everybody: Sequence[Configuration], num: int) -> list[Configuration]:
    """The fastest of each side of each training so far, in the order of the plan."""
    best: list[Configuration] = []
    for group in dict.fromkeys((c.kind, c.side) for c in everybody):
        measured = [c for c in everybody if (c.kind, c.side) == group and c.windows and c.problem is None]
        best += sorted(measured, key=Configuration.speed, reverse=True)[:num]
    return [configuration for configuration in everybody if configuration in best]


def best_of(everybody: Sequence[Configuration], kind: str, side: str) -> Configuration | None:
    """The fastest that holds the ratio; those that were repeated go before those of the first round alone."""
    fit = [c for c in everybody if (c.kind, c.side) == (kind, side) and c.windows and c.problem is None]
    fit = [c for c in fit if c.holds_ratio()]
    most = max((len(c.windows) for c in fit), default=0)
    return max((c for c in fit if len(c.windows) == most), key=Configuration.speed, default=None)


def in_turns(groups: Mapping[str, Sequence[Configuration]]) -> list[Configuration]:
    """One of each group, then the next of each: a disturbance of the machine hits all alike."""
    longest = max((len(group) for group in groups.values()), default=0)
    return [group[i] for i in range(longest) for group in groups.values() if i < len(group)]


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
