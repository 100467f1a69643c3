"""Trainings that are measured: one side's with one layout, each window of it in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from freewheel.bench import installed
from freewheel.bench.account import sentence
from freewheel.bench.child import Child, PeerFailed
from freewheel.bench.harness import OURS, median, progress, shown
from freewheel.bench.peers.dqn_settings import BATCH, STEPS_PER_UPDATE

HERE = Path(sys.executable)
OURS_MODULE = "freewheel.bench.dqn_ours"
# Compiling 8 updates of IQN took more than three minutes on a machine whose cores were both taken.
TRAIN_TIMEOUT_S = 600.0
# The ratio that is to be held; a training that is further off is another one, and does not count.
RATIO_TOLERANCE = 0.05
# The first round tries every configuration; so many of each side go on to the others.
NUM_FINALISTS = 2

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
        """One window in a fresh process; a configuration that fails is told of, and not tried again."""
        if self.problem is not None:
            return
        order = {"op": "train", "warm_s": warm_s, "seconds": seconds, **self.order}
        timeout_s = TRAIN_TIMEOUT_S + warm_s + 3 * seconds
        try:
            with Child(self.label, self.python, "train_worker", self.module, str(self.order["threads"])) as child:
                versions[self.side] = child.greeting["version"]
                self.windows.append(child.ask(order, timeout_s))
        except PeerFailed as error:
            print(f"{error}\n{self.label} is left out.", file=sys.stderr)
            self.problem = str(error).splitlines()[0]


def measure_all(
    title: str, everybody: Sequence[Configuration], rounds: int, warm_s: float, seconds: float
) -> dict[str, str]:
    """All in the first round, the finalists in the others; the version of each side that was there."""
    versions: dict[str, str] = {}
    with progress(title, len(everybody)) as bar:
        for turn in range(rounds):
            chosen = everybody if turn == 0 else finalists(everybody, NUM_FINALISTS)
            if turn == 1:
                bar.grow(len(chosen) * (rounds - 1))
            for configuration in chosen:
                bar.show(f"round {turn + 1}: {configuration.label}")
                configuration.measure(warm_s, seconds, versions)
                bar.advance()
    return versions


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


def side_pythons(
    against: Sequence[str] | None, packages: Mapping[str, str], own_loops: Mapping[str, str]
) -> dict[str, tuple[Path, str]]:
    """Interpreter and module of each peer to run: other projects' in the peers' interpreter, loops of our own in this one."""
    known = [*packages, *own_loops]
    asked = known if against is None else installed.check_names(against, known, "peer")
    wanted = [peer for peer in asked if peer in packages]
    found = installed.find_peers(None if against is None else wanted or ["none"], list(packages))
    pythons = {peer: (python, packages[peer]) for peer, python in found.items()}
    pythons |= {peer: (HERE, own_loops[peer]) for peer in asked if peer in own_loops}
    return {peer: pythons[peer] for peer in asked if peer in pythons}


def details(kind: str, everybody: Sequence[Configuration], best: Mapping[str, Configuration]) -> dict[str, Any]:
    """What stands in the record of a case beside its figures."""
    tried = [c for c in everybody if c.kind == kind]
    measured = [c for c in tried if c.windows]
    sides = dict.fromkeys(c.side for c in measured)
    extra: dict[str, Any] = {
        "best": {side: configuration.name for side, configuration in best.items()},
        "ratios": {side: shown(configuration.ratio()) for side, configuration in best.items()},
        "updates_per_step": {side: shown(configuration.updates_per_step()) for side, configuration in best.items()},
        "configurations": {side: {c.name: c.record() for c in measured if c.side == side} for side in sides},
        "notes": [line(c, c in best.values()) for c in measured],
    }
    account = best[OURS].account()
    if account:
        extra["account"] = account
        extra["notes"].append(f"{best[OURS].label}: {sentence(account)}")
    missing = {c.label: c.problem for c in tried if c.problem}
    return {**extra, "missing": missing} if missing else extra


def line(configuration: Configuration, is_best: bool) -> str:
    verdict = "; its best" if is_best else ""
    if not configuration.holds_ratio():
        verdict = f"; NOT the ratio of {configuration.pace.ratio:g} that was asked for, so it does not count"
    return f"{configuration.label}: {configuration.speed():,.0f} steps/s, ratio {configuration.ratio():.2f}{verdict}."


def why_nothing(kind: str, everybody: Sequence[Configuration]) -> str:
    """Why none of ours can be counted."""
    off = [c for c in everybody if (c.kind, c.side) == (kind, OURS) and c.windows and not c.holds_ratio()]
    if off:
        return "they ran at " + ", ".join(f"a ratio of {c.ratio():.1f} ({c.name})" for c in off)
    return "each one's last lines are above"
