"""`freewheel bench worlds`: stepping many envs and nothing else, ours against other projects' vector envs."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

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
from freewheel.bench.peers.world_envs import ENVS, IDS, make
from freewheel.bench.settings import WorldsSettings, check_numbers, check_rounds
from freewheel.bench.worlds_plan import WAYS, Plan, plans_of
from freewheel.config import WorldConfig
from freewheel.run.guard import start_forkserver
from freewheel.worlds.make import choose_world, make_world
from freewheel.worlds.pool import PoolWorld
from freewheel.worlds.world import World

OPEN_TIMEOUT_S = 120.0
STEP_TIMEOUT_S = 60.0
WARM_SHARE = 0.2


def run(settings: WorldsSettings) -> list[Case]:
    """Measure, print, and give the cases."""
    check_rounds(settings.rounds, settings.seconds)
    check_numbers(lanes=settings.lanes)
    envs = installed.check_names(settings.envs or ENVS, ENVS, "env")
    if "atari" in envs and importlib.util.find_spec("ale_py") is None:
        print("atari is left out: ale-py is not installed (pip install 'freewheel[atari]').", file=sys.stderr)
        envs.remove("atari")
    peers = find_peers(settings)
    start_forkserver()
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
            world, reasons[plan.name] = open_ours(plan)
            closing.callback(world.close)
            measures[plan.name, OURS] = partial(Player(world).rows_per_s, settings.seconds)
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


def open_ours(plan: Plan) -> tuple[World, str]:
    env: Any = IDS.get(plan.env) or partial(make, plan.env)
    pictures: dict[str, Any] = {"image_size": 84, "grey": True, "skip": 4} if plan.env == "atari" else {}
    if plan.env == "atari" and plan.kind == "vector":
        pictures["kwargs"] = '{"num_threads": 0}'  # as many as it takes by itself
    config = WorldConfig(lanes=plan.lanes, kind=plan.kind, **pictures)  # type: ignore[arg-type]
    choice = choose_world(env, config)
    return make_world(env, choice.config, 0), choice.reason


class Player:
    """Steps a world with random actions. Between two windows it is idle: what is under way would disturb the others."""

    def __init__(self, world: World) -> None:
        self.world = world
        space: Any = world.action_space
        self._actions = np.random.default_rng(0).integers(space.start, space.start + space.n, (64, world.num_lanes))
        self._count = 0
        self._held: list[Any] = []  # lanes that wait for an action

    def rows_per_s(self, seconds: float) -> float:
        """Steps that were completed in a second; the first ones do not count."""
        for lanes in self._held:
            self._answer(lanes)
        self._held = []
        clock = time.perf_counter
        self._play(clock() + WARM_SHARE * seconds)
        began_s = clock()
        rows = self._play(began_s + seconds)
        figure = rows / (clock() - began_s)
        if isinstance(self.world, PoolWorld):
            while sum(map(len, self._held)) < self.world.num_lanes:
                self._held.append(self.world.recv().lanes)
        return figure

    def _play(self, until_s: float) -> int:
        rows, clock = 0, time.perf_counter
        while clock() < until_s:
            lanes = self.world.recv().lanes
            rows += len(lanes)  # the rows that ended are as many as the first ones, which are no steps
            self._answer(lanes)
        return rows

    def _answer(self, lanes: Any) -> None:
        self._count += 1
        self.world.send(lanes, self._actions[self._count % 64, : len(lanes)])


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
        return self._ask(name, {"op": "open", "env": env, "lanes": lanes}, OPEN_TIMEOUT_S) is not None

    def close(self, name: str) -> None:
        self._ask(name, {"op": "close"}, OPEN_TIMEOUT_S)

    def measure(self, name: str, seconds: float) -> float:
        answer = self._ask(name, {"op": "step", "seconds": seconds}, STEP_TIMEOUT_S + 3 * seconds)
        return math.nan if answer is None else float(answer["rows_per_s"])

    def _ask(self, name: str, message: dict[str, Any], timeout_s: float) -> dict[str, Any] | None:
        if name not in self._children:
            return None
        try:
            return self._children[name].ask(message, timeout_s)
        except PeerFailed as error:
            self._drop(name, error)
            return None

    def _drop(self, name: str, error: PeerFailed) -> None:
        print(f"{error}\n{name} is left out.", file=sys.stderr)
        self.missing[name] = str(error).splitlines()[0]
        with contextlib.suppress(KeyError):
            self._children.pop(name).stop()
