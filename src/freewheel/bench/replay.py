"""`freewheel bench replay`: adding rows and drawing batches, beside plain numpy arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial

import torch

from freewheel.bench import filled_replay
from freewheel.bench.buffer_processes import NUMPY, BufferProgram, Buffers, can_run
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
from freewheel.bench.replay_plan import NUM_LANES, Stage, fit, plan
from freewheel.bench.settings import ReplaySettings
from freewheel.bench.worker.window import Call, keep_freed_memory, measure_us
from freewheel.memory.segment import allowed_bytes


def run(settings: ReplaySettings) -> list[Case]:
    """Measure, print, and give the cases."""
    machine, cases = measure(settings, {})
    report("replay", machine, cases, as_json=settings.json)
    return cases


def measure(settings: ReplaySettings, peers: Mapping[str, BufferProgram]) -> tuple[Machine, list[Case]]:
    """Ours, numpy and the peers in the same rounds."""
    stages = plan(settings)
    programs = {**peers, "numpy": NUMPY}
    torch.set_num_threads(1)
    keep_freed_memory()
    with ExitStack() as closing, progress("bench replay", num_windows(stages, programs, settings)) as bar:
        others = Buffers(programs, closing, bar)
        machine = describe_machine({name: found for name, found in others.versions.items() if name in peers})
        warn_if_busy(machine)
        cases = [case for stage in stages for case in run_stage(stage, others, settings, bar)]
        for stage in stages:
            if counts_bytes(stage):
                cases.append(bytes_case(stage, bar))
            if stage.op == "prioritized" and stage.obs.name == "f32[171]" and 256 in stage.batches:
                cases.append(per_cost_case(stage, settings, bar))
    return machine, cases


def num_windows(stages: Sequence[Stage], programs: Mapping[str, BufferProgram], settings: ReplaySettings) -> int:
    """Measurements to come, when all buffers fit into memory together."""
    runners = [1 + sum(can_run(program, stage) for program in programs.values()) for stage in stages]
    return settings.rounds * sum(n * len(stage.batches) for n, stage in zip(runners, stages, strict=True))


def run_stage(stage: Stage, others: Buffers, settings: ReplaySettings, bar: Bar) -> list[Case]:
    """All cases of one stage: ours stays open, the others come in groups that fit into memory beside it."""
    cases = {batch: stage.case(batch) for batch in stage.batches}
    bar.show(f"filling {stage.op}/{stage.obs.name}")
    calls = our_calls(stage)
    groups, note = fit(others.able(stage), stage, allowed_bytes()[0])
    bar.grow((len(groups) - 1) * len(stage.batches) * settings.rounds)
    for group in groups:
        run_group(group, stage, cases, calls, others, settings, bar)
    for case in cases.values():
        if note:
            case.extra["notes"] = [note]
        if others.missing:
            case.extra["missing"] = dict(others.missing)
    return list(cases.values())


def run_group(
    group: Sequence[str],
    stage: Stage,
    cases: Mapping[int, Case],
    calls: Mapping[int, Call],
    others: Buffers,
    settings: ReplaySettings,
    bar: Bar,
) -> None:
    """Ours and these buffers in rounds; their figures go into the cases."""
    for name in group:
        bar.show(f"filling {stage.op}/{stage.obs.name} {name}")
        others.open(name, stage)
    measures: dict[tuple[str, str], Measure] = {}
    for batch, case in cases.items():
        measures[case.name, OURS] = _our_measure(stage, calls[batch], batch, settings.seconds)
        for name in group:
            measures[case.name, name] = partial(others.measure, name, stage, batch, settings.seconds)
    figures = interleave(measures, settings.rounds, bar)
    for case in cases.values():
        case.ours += figures[case.name, OURS]
        for name in group:
            if name in others.children:
                side = case.baselines if others.programs[name].is_baseline else case.peers
                side[name] = figures[case.name, name]
    for name in group:
        others.close(name)


def our_calls(stage: Stage) -> dict[int, Call]:
    if stage.op == "add":
        _, writer = filled_replay.open_lanes(stage.obs, stage.capacity, stage.num_envs)
        return {stage.num_envs: filled_replay.add_call(writer, stage.obs, stage.num_envs)}
    lanes, _ = filled_replay.open_lanes(stage.obs, stage.capacity, NUM_LANES)
    is_prioritized = stage.op == "prioritized"
    return {
        batch: filled_replay.sample_call(filled_replay.open_replay(lanes, stage.obs, batch, prioritized=is_prioritized))
        for batch in stage.batches
    }


def _our_measure(stage: Stage, call: Call, batch: int, seconds: float) -> Measure:
    share = filled_replay.TRANSITION_SHARE if stage.op == "add" else 1.0
    return lambda: stage.figure(measure_us(call, seconds), batch) * share


def counts_bytes(stage: Stage) -> bool:
    """Once for each kind of stacked frames."""
    return stage.op == "uniform" and stage.obs.is_stacked


def bytes_case(stage: Stage, bar: Bar) -> Case:
    """Memory per transition."""
    case = Case(f"bytes/{stage.obs.name}", "bytes/row", extra={"capacity": stage.capacity})
    bar.show(case.name)
    case.ours = [filled_replay.bytes_per_transition(stage.obs, stage.capacity, NUM_LANES)]
    return case


def per_cost_case(stage: Stage, settings: ReplaySettings, bar: Bar) -> Case:
    """What priorities cost: our prioritized batch against our uniform batch from the same lanes."""
    name, baseline = f"per_cost/{stage.obs.name}/256", "ours uniform"
    case = Case(name, "us", baseline=baseline, extra={"capacity": stage.capacity})
    lanes, _ = filled_replay.open_lanes(stage.obs, stage.capacity, NUM_LANES)
    uniform, prioritized = (
        filled_replay.sample_call(filled_replay.open_replay(lanes, stage.obs, 256, prioritized=on))
        for on in (False, True)
    )
    measures: dict[tuple[str, str], Measure] = {
        (name, OURS): lambda: measure_us(prioritized, settings.seconds),
        (name, baseline): lambda: measure_us(uniform, settings.seconds),
    }
    bar.grow(len(measures) * settings.rounds)
    figures = interleave(measures, settings.rounds, bar)
    case.ours, case.baselines[baseline] = figures[name, OURS], figures[name, baseline]
    return case
