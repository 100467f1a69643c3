"""`freewheel bench replay`: adding rows and drawing batches, ours against other projects' replay buffers."""

from __future__ import annotations

import gc
import sys
from contextlib import ExitStack

import torch

from freewheel.bench import installed, ours
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
from freewheel.bench.peers.window import Call, keep_freed_memory, measure_us
from freewheel.bench.rivals import Rivals
from freewheel.bench.settings import NUM_LANES, ReplaySettings
from freewheel.bench.stages import GOALS, Stage, fit, num_windows, plan
from freewheel.memory.segment import allowed_bytes

# Forms of the peers that store less, for the case that counts bytes: what the peer calls them.
SMALL_FORMS = {"sb3": "optimize_memory_usage", "cpprb": "stack_compress", "tianshou": "stack_num"}


def run(settings: ReplaySettings) -> list[Case]:
    """Measure, print, and give the cases."""
    stages = plan(settings)
    python = installed.find_python()
    peers = installed.choose(settings.against, python)
    if python is None and settings.against is None:
        print(installed.HOW_TO_GET, file=sys.stderr)
    torch.set_num_threads(1)
    keep_freed_memory()
    with ExitStack() as closing, progress("bench replay", num_windows(stages, peers, settings)) as bar:
        # Numpy needs no peers' environment: it runs in ours.
        rivals = Rivals({**{peer: str(python) for peer in peers}, "numpy": sys.executable}, closing, bar)
        machine = describe_machine(rivals.versions)
        warn_if_busy(machine)
        cases = [case for stage in stages for case in run_stage(stage, rivals, settings, bar)]
        for stage in stages:
            if stage.op == "uniform" and stage.obs.is_stacked:
                cases.append(bytes_case(stage, rivals, bar))
            if stage.op == "prioritized" and stage.obs.name == "f32[171]" and 256 in stage.batches:
                cases.append(per_cost_case(stage, settings, bar))
    report("replay", machine, cases, as_json=settings.json)
    return cases


def run_stage(stage: Stage, rivals: Rivals, settings: ReplaySettings, bar: Bar) -> list[Case]:
    """All cases of one stage: ours stays open, the others come in groups that fit into memory beside it."""
    cases = {batch: stage.case(batch) for batch in stage.batches}
    bar.show(f"filling {stage.op}/{stage.obs.name}")
    calls = our_calls(stage)
    names = [name for name in rivals.children if stage.is_run_by(name)]
    groups, note = fit(names, stage, allowed_bytes()[0])
    bar.grow((len(groups) - 1) * len(stage.batches) * settings.rounds)
    for group in groups:
        for name in group:
            bar.show(f"filling {stage.op}/{stage.obs.name} {name}")
            rivals.open(name, stage)
        measures: dict[tuple[str, str], Measure] = {}
        for batch, case in cases.items():
            measures[case.name, OURS] = _our_measure(stage, calls[batch], batch, settings.seconds)
            for name in group:
                measures[case.name, name] = _measure(rivals, name, stage, batch, settings.seconds)
        figures = interleave(measures, settings.rounds, bar)
        for case in cases.values():
            case.ours += figures[case.name, OURS]
            for name in group:
                if name in rivals.children:
                    (case.baselines if name == "numpy" else case.peers)[name] = figures[case.name, name]
        for name in group:
            rivals.close(name)
    for case in cases.values():
        if note:
            case.extra["notes"] = [note]
        if rivals.missing:
            case.extra["missing"] = dict(rivals.missing)
    return list(cases.values())


def our_calls(stage: Stage) -> dict[int, Call]:
    if stage.op == "add":
        _, writer = ours.open_lanes(stage.obs, stage.capacity, stage.num_envs)
        return {stage.num_envs: ours.add_call(writer, stage.obs, stage.num_envs)}
    lanes, _ = ours.open_lanes(stage.obs, stage.capacity, NUM_LANES)
    prioritized = stage.op == "prioritized"
    return {b: ours.sample_call(ours.open_replay(lanes, stage.obs, b, prioritized=prioritized)) for b in stage.batches}


def _our_measure(stage: Stage, call: Call, batch: int, seconds: float) -> Measure:
    share = ours.TRANSITION_SHARE if stage.op == "add" else 1.0
    return lambda: stage.figure(measure_us(call, seconds), batch) * share


def _measure(rivals: Rivals, name: str, stage: Stage, batch: int, seconds: float) -> Measure:
    return lambda: rivals.measure(name, stage, batch, seconds)


def bytes_case(stage: Stage, rivals: Rivals, bar: Bar) -> Case:
    """Memory per transition against SB3 as it comes; the smaller forms stand beside it."""
    name = f"bytes/{stage.obs.name}"
    bar.show(name)
    case = Case(name, "bytes/row", goal=GOALS.get(name), extra={"capacity": stage.capacity})
    case.ours = [ours.bytes_per_transition(stage.obs, stage.capacity, NUM_LANES)]
    gc.collect()
    for peer, form in SMALL_FORMS.items():
        if peer not in rivals.children or stage.peer_bytes > allowed_bytes()[0]:
            continue
        if peer == "sb3":
            taken = rivals.open(peer, stage)
            if taken is not None:
                case.peers[peer] = [taken / stage.capacity]
        taken = rivals.open(peer, stage, small=True)
        if taken is not None:
            case.baselines[f"{peer} {form}"] = [taken / stage.capacity]
        rivals.close(peer)
    return case


def per_cost_case(stage: Stage, settings: ReplaySettings, bar: Bar) -> Case:
    """What priorities cost: our prioritized batch against our uniform batch from the same lanes."""
    name, baseline = f"per_cost/{stage.obs.name}/256", "ours uniform"
    case = Case(name, "us", baseline=baseline, goal=GOALS.get(name), extra={"capacity": stage.capacity})
    lanes, _ = ours.open_lanes(stage.obs, stage.capacity, NUM_LANES)
    uniform, prioritized = (
        ours.sample_call(ours.open_replay(lanes, stage.obs, 256, prioritized=on)) for on in (False, True)
    )
    measures: dict[tuple[str, str], Measure] = {
        (name, OURS): lambda: measure_us(prioritized, settings.seconds),
        (name, baseline): lambda: measure_us(uniform, settings.seconds),
    }
    bar.grow(len(measures) * settings.rounds)
    figures = interleave(measures, settings.rounds, bar)
    case.ours, case.baselines[baseline] = figures[name, OURS], figures[name, baseline]
    return case
