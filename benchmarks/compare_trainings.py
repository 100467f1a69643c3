"""Trainings of several sides: every configuration is tried once, the best of each side are repeated and compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import installed
from freewheel.bench.account import sentence
from freewheel.bench.checks import check_names
from freewheel.bench.harness import OURS, progress, shown
from freewheel.bench.trainings import Configuration

# The first round tries every configuration; so many of each side go on to the others.
NUM_FINALISTS = 2


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


def interleaved(groups: Mapping[str, Sequence[Configuration]]) -> list[Configuration]:
    """One of each group, then the next of each: a disturbance of the machine hits all alike."""
    longest = max((len(group) for group in groups.values()), default=0)
    return [group[i] for i in range(longest) for group in groups.values() if i < len(group)]


def side_pythons(
    against: Sequence[str] | None, packages: Mapping[str, str], own_loops: Mapping[str, str]
) -> dict[str, tuple[Path, str]]:
    """Interpreter and module of each peer to run: other projects' in the peers' interpreter, loops of our own in this one."""
    known = [*packages, *own_loops]
    asked = known if against is None else check_names(against, known, "peer")
    wanted = [peer for peer in asked if peer in packages]
    found = installed.find_peers(None if against is None else wanted or ["none"], list(packages))
    pythons = {peer: (python, packages[peer]) for peer, python in found.items()}
    pythons |= {peer: (installed.HERE, own_loops[peer]) for peer in asked if peer in own_loops}
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
