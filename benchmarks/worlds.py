"""`python -m benchmarks worlds`: `freewheel bench worlds` with other projects' vector envs in the same rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks import installed
from benchmarks.settings import WorldsSettings
from freewheel.bench import worlds
from freewheel.bench.checks import check_names
from freewheel.bench.harness import Case, report
from freewheel.bench.worlds import FAST, HAS_VECTOR, Plan

# Ways to step envs, by the package they come with.
WAYS = {
    "gymnasium": ("gym-sync", "gym-async", "gym-vector"),
    "sb3": ("sb3-dummy", "sb3-subproc"),
    "envpool": ("envpool",),
    "pufferlib": ("puffer",),
}
# Ways that step their envs one after the other: too slow where a step waits or takes long.
ONE_BY_ONE = ("gym-sync", "sb3-dummy", "puffer")
# Native code does not step an env that is written in Python: it stands beside auto and does not count there.
NATIVE = ("envpool", "gym-vector")
# Each kind of world: the way it is compared with, and those that are shown beside it.
COMPARED = {
    "inline": (("gym-sync",), ("sb3-dummy", "puffer")),
    "pool": (("gym-async",), ("sb3-subproc",)),
    "vector": (("gym-vector",), ("envpool",)),
}
GOALS = {
    "inline/cartpole": 1.3,
    "pool/cartpole/128": 4.0,
    "pool/sleep/128": 2.0,
    "pool/heavy/128": 2.0,
    "auto": 1.0,
    "vector": 0.95,
}


def run(settings: WorldsSettings) -> list[Case]:
    """Measure, print, and give the cases."""
    stages = worlds.stages_of(settings)
    pythons = find_peers(settings.against)
    programs = {way: installed.program(python, "worlds_worker", way) for way, python in pythons.items()}
    compared = [[with_peers(plan, list(programs)) for plan in plans] for plans in stages]
    machine, cases = worlds.measure(compared, programs, settings)
    report("worlds", machine, cases, as_json=settings.json)
    return cases


def find_peers(against: Sequence[str] | None) -> dict[str, Path]:
    """Each way of stepping envs, with the interpreter that it runs in. Gymnasium comes with ours."""
    asked = None if against is None else check_names(against, WAYS, "peer")
    others = None if asked is None else [name for name in asked if name != "gymnasium"] or ["none"]
    pythons = installed.find_peers(others, [name for name in WAYS if name != "gymnasium"])
    if asked is None or "gymnasium" in asked:
        pythons = {"gymnasium": installed.HERE, **pythons}
    return {way: pythons[package] for package in WAYS if package in pythons for way in WAYS[package]}


def with_peers(plan: Plan, ways: Sequence[str]) -> Plan:
    """The case with its goal and with the ways to compare it with, of those that are there."""
    able = [way for way in ways if is_able(way, plan.env)]
    if plan.kind == "auto":
        peers, beside = [way for way in able if way not in NATIVE], [way for way in able if way in NATIVE]
    else:
        peers, beside = ([way for way in chosen if way in able] for chosen in COMPARED[plan.kind])
    return replace(plan, peers=tuple(peers), beside=tuple(beside), goal=goal_of(plan))


def goal_of(plan: Plan) -> float | None:
    keys = (plan.name, f"{plan.kind}/{plan.env}", plan.kind)
    return next((GOALS[key] for key in keys if key in GOALS), None)


def is_able(way: str, env: str) -> bool:
    if way in NATIVE:
        return env in HAS_VECTOR
    return env in FAST or way not in ONE_BY_ONE
