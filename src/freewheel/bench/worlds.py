"""`freewheel bench worlds`: stepping many envs and nothing else, ours against other projects' vector envs."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from freewheel.bench import installed
from freewheel.bench.child import Child, PeerFailed
from freewheel.bench.harness import (
    OURS,
    Bar,
    Case,
    Measure,
    describe_machine,
    interleave,
    progress,
    report,
    warn_if_busy,
)
from freewheel.bench.peers.world_envs import ENVS
from freewheel.bench.settings import WorldsSettings, check_numbers, check_rounds
from freewheel.bench.worlds_plan import WAYS, Plan, plans_of

Answer = TypeVar("Answer")

OPEN_TIMEOUT_S = 120.0
STEP_TIMEOUT_S = 60.0


def run(settings: WorldsSettings) -> list[Case]:
    """Measure, print, and give the cases."""
    check_rounds(settings.rounds, settings.seconds)
    check_numbers(lanes=settings.lanes)
    envs = installed.check_names(settings.envs or ENVS, ENVS, "env")
    if "atari" in envs and importlib.util.find_spec("ale_py") is None:
        print("atari is left out: ale-py is not installed (pip install 'freewheel[atari]').", file=sys.stderr)
        envs.remove("atari")
    peers = find_peers(settings)
    cases: list[Case] = []
    stages = [plans_of(env, lanes, list(peers)) for env in envs for lanes in settings.lanes]
    total = settings.rounds * sum(len(plans) + len(peers_of(plans)) for plans in stages)
    with ExitStack() as closing, progress("bench worlds", total) as bar:
        rivals = Rivals(peers, closing, bar)
        machine = describe_machine(rivals.versions)
        warn_if_busy(machine)
        for plans in stages:
            cases += run_stage(plans, rivals, settings, bar)
    report("worlds", machine, cases, as_json=settings.json)
    return cases


def find_peers(settings: WorldsSettings) -> dict[str, Path]:
    """Each way of stepping envs, with the interpreter that it runs in. Gymnasium comes with ours."""
    asked = None if settings.against is None else installed.check_names(settings.against, WAYS, "peer")
    others = None if asked is None else [name for name in asked if name != "gymnasium"] or ["none"]
    pythons = installed.find_peers(others, [name for name in WAYS if name != "gymnasium"])
    if asked is None or "gymnasium" in asked:
        pythons = {"gymnasium": Path(sys.executable), **pythons}
    return {way: pythons[package] for package in WAYS if package in pythons for way in WAYS[package]}


def peers_of(plans: list[Plan]) -> list[str]:
    return list(dict.fromkeys(peer for plan in plans for peer in (*plan.peers, *plan.beside)))


def run_stage(plans: list[Plan], rivals: Rivals, settings: WorldsSettings, bar: Bar) -> list[Case]:
    """All ways to step one env with so many lanes, in turn; those that are not measured sleep."""
    env, lanes = plans[0].env, plans[0].lanes
    measures: dict[tuple[str, str], Measure] = {}
    with ExitStack() as closing:
        reasons = {}
        for plan in plans:
            bar.show(f"opening {plan.name}")
            # A process of its own for each, as for the peers: nothing of one world lies in another's way.
            ours = closing.enter_context(Child(plan.name, Path(sys.executable), "worlds_worker", f"{OURS}-{plan.kind}"))
            reasons[plan.name] = ours.ask(order_to_open(env, lanes), OPEN_TIMEOUT_S)["reason"]
            measures[plan.name, OURS] = partial(rows_per_s, ours, settings.seconds)
        for peer in peers_of(plans):
            bar.show(f"opening {peer} {env}/{lanes}")
            if rivals.open(peer, env, lanes):
                closing.callback(rivals.close, peer)
                measures[f"{env}/{lanes}", peer] = partial(rivals.measure, peer, settings.seconds)
        figures = interleave(measures, settings.rounds, bar)
    cases = []
    for plan in plans:
        case = Case(plan.name, "rows/s", ours=figures[plan.name, OURS], goal=plan.goal)
        theirs = {who: f for (_, who), f in figures.items() if who != OURS and not any(map(math.isnan, f))}
        case.peers = {peer: theirs[peer] for peer in plan.peers if peer in theirs}
        case.baselines = {peer: theirs[peer] for peer in plan.beside if peer in theirs}
        if reasons[plan.name]:
            case.extra["notes"] = [f"{plan.name}: {reasons[plan.name]}"]
        if rivals.missing:
            case.extra["missing"] = dict(rivals.missing)
        cases.append(case)
    return cases


def order_to_open(env: str, lanes: int) -> dict[str, Any]:
    return {"op": "open", "env": env, "lanes": lanes}


def rows_per_s(side: Child, seconds: float) -> float:
    return float(side.ask({"op": "step", "seconds": seconds}, STEP_TIMEOUT_S + 3 * seconds)["rows_per_s"])


class Rivals:
    """Each peer in a process of its own. One that fails is told of on stderr and missing from then on."""

    def __init__(self, pythons: dict[str, Path], closing: ExitStack, bar: Bar) -> None:
        self.missing: dict[str, str] = {}
        self._children: dict[str, Child] = {}
        for name, python in pythons.items():
            bar.show(f"starting {name}")
            try:
                self._children[name] = closing.enter_context(Child(name, python, "worlds_worker", name))
            except PeerFailed as error:
                self._drop(name, error)

    @property
    def versions(self) -> dict[str, str]:
        return {name: child.greeting["version"] for name, child in self._children.items()}

    def open(self, name: str, env: str, lanes: int) -> bool:
        return self._try(name, lambda child: child.ask(order_to_open(env, lanes), OPEN_TIMEOUT_S)) is not None

    def close(self, name: str) -> None:
        self._try(name, lambda child: child.ask({"op": "close"}, OPEN_TIMEOUT_S))

    def measure(self, name: str, seconds: float) -> float:
        figure = self._try(name, lambda child: rows_per_s(child, seconds))
        return math.nan if figure is None else figure

    def _try(self, name: str, ask: Callable[[Child], Answer]) -> Answer | None:
        if name not in self._children:
            return None
        try:
            return ask(self._children[name])
        except PeerFailed as error:
            self._drop(name, error)
            return None

    def _drop(self, name: str, error: PeerFailed) -> None:
        print(f"{error}\n{name} is left out.", file=sys.stderr)
        self.missing[name] = str(error).splitlines()[0]
        with contextlib.suppress(KeyError):
            self._children.pop(name).stop()
