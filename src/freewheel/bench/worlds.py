"""`freewheel bench worlds`: stepping many envs and nothing else, by each kind of world."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from freewheel.bench.checks import check_names, check_numbers, check_rounds
from freewheel.bench.child import Child, Program, own_program
from freewheel.bench.harness import (
    OURS,
    Bar,
    Case,
    Machine,
    Measure,
    describe_machine,
    interleave,
    progress,
    report,
    warn_if_busy,
)
from freewheel.bench.processes import Processes
from freewheel.bench.settings import WorldsSettings
from freewheel.bench.worker.world_envs import ENVS

FAST = ("cartpole",)
HAS_VECTOR = ("cartpole", "atari")
OPEN_TIMEOUT_S = 120.0
STEP_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Plan:
    """One case: a world of this kind, compared with these peers; `beside` are shown and do not count."""

    kind: str
    env: str
    lanes: int
    peers: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    goal: float | None = None

    @property
    def name(self) -> str:
        return f"{self.kind}/{self.env}/{self.lanes}"


def run(settings: WorldsSettings) -> list[Case]:
    """Measure, print, and give the cases."""
    machine, cases = measure(stages_of(settings), {}, settings)
    report("worlds", machine, cases, as_json=settings.json)
    return cases


def stages_of(settings: WorldsSettings) -> list[list[Plan]]:
    """The cases that are measured in the same rounds: those of one env with one number of lanes."""
    check_rounds(settings.rounds, settings.seconds)
    check_numbers(lanes=settings.lanes)
    envs = check_names(settings.envs or ENVS, ENVS, "env")
    if "atari" in envs and importlib.util.find_spec("ale_py") is None:
        print("atari is left out: ale-py is not installed (pip install 'freewheel[atari]').", file=sys.stderr)
        envs.remove("atari")
    return [plans_of(env, lanes) for env in envs for lanes in settings.lanes]


def plans_of(env: str, lanes: int) -> list[Plan]:
    """Where a step waits or takes long, no world steps its envs one after the other."""
    kinds = ["inline"] * (env in FAST) + ["pool"] + ["vector"] * (env in HAS_VECTOR) + ["auto"]
    return [Plan(kind, env, lanes) for kind in kinds]


def measure(
    stages: Sequence[Sequence[Plan]], programs: Mapping[str, Program], settings: WorldsSettings
) -> tuple[Machine, list[Case]]:
    """Ours and the peers whose programs are given, in the same rounds."""
    cases: list[Case] = []
    total = settings.rounds * sum(len(plans) + len(peers_of(plans)) for plans in stages)
    with ExitStack() as closing, progress("bench worlds", total) as bar:
        peers = Processes(programs, closing, bar)
        machine = describe_machine(peers.versions)
        warn_if_busy(machine)
        for plans in stages:
            cases += run_stage(plans, peers, settings, bar)
    return machine, cases


def peers_of(plans: Sequence[Plan]) -> list[str]:
    return list(dict.fromkeys(peer for plan in plans for peer in (*plan.peers, *plan.beside)))


def run_stage(plans: Sequence[Plan], peers: Processes, settings: WorldsSettings, bar: Bar) -> list[Case]:
    """All ways to step one env with so many lanes, in turn; those that are not measured sleep."""
    env, lanes = plans[0].env, plans[0].lanes
    measures: dict[tuple[str, str], Measure] = {}
    with ExitStack() as closing:
        reasons = {}
        for plan in plans:
            bar.show(f"opening {plan.name}")
            # A process of its own for each, as for the peers: nothing of one world lies in another's way.
            ours = closing.enter_context(Child(plan.name, own_program("worlds_worker", plan.kind)))
            reasons[plan.name] = ours.ask(order_to_open(env, lanes), OPEN_TIMEOUT_S)["reason"]
            measures[plan.name, OURS] = partial(our_rows_per_s, ours, settings.seconds)
        for peer in peers_of(plans):
            bar.show(f"opening {peer} {env}/{lanes}")
            if peers.ask(peer, order_to_open(env, lanes), OPEN_TIMEOUT_S) is not None:
                closing.callback(peers.ask, peer, {"op": "close"}, OPEN_TIMEOUT_S)
                measures[f"{env}/{lanes}", peer] = partial(rows_per_s, peers, peer, settings.seconds)
        figures = interleave(measures, settings.rounds, bar)
    theirs = {who: f for (_, who), f in figures.items() if who != OURS and not any(map(math.isnan, f))}
    cases = []
    for plan in plans:
        case = Case(plan.name, "rows/s", ours=figures[plan.name, OURS], goal=plan.goal)
        case.peers = {peer: theirs[peer] for peer in plan.peers if peer in theirs}
        case.baselines = {peer: theirs[peer] for peer in plan.beside if peer in theirs}
        if reasons[plan.name]:
            case.extra["notes"] = [f"{plan.name}: {reasons[plan.name]}"]
        if peers.missing:
            case.extra["missing"] = dict(peers.missing)
        cases.append(case)
    return cases


def order_to_open(env: str, lanes: int) -> dict[str, Any]:
    return {"op": "open", "env": env, "lanes": lanes}


def our_rows_per_s(ours: Child, seconds: float) -> float:
    return float(ours.ask({"op": "step", "seconds": seconds}, STEP_TIMEOUT_S + 3 * seconds)["rows_per_s"])


def rows_per_s(peers: Processes, peer: str, seconds: float) -> float:
    """NaN when it failed now or before."""
    answer = peers.ask(peer, {"op": "step", "seconds": seconds}, STEP_TIMEOUT_S + 3 * seconds)
    return math.nan if answer is None else float(answer["rows_per_s"])
