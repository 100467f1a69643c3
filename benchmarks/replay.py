"""`python -m benchmarks replay`: `freewheel bench replay` with other projects' replay buffers in the same rounds."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import ExitStack

from benchmarks import installed
from benchmarks.peers.packages import PACKAGES
from benchmarks.settings import ReplaySettings
from freewheel.bench import replay
from freewheel.bench.buffer_processes import BufferProgram, Buffers
from freewheel.bench.harness import Case, progress, report
from freewheel.bench.replay_plan import Stage, plan
from freewheel.memory.segment import allowed_bytes

# What the first release set out to reach, against the fastest peer of the same run.
GOALS = {
    "add/f32[8]/64": 5.0,
    "add/f32[171]/64": 5.0,
    "uniform/f32[8]/256": 3.0,
    "uniform/f32[171]/256": 2.0,
    "prioritized/f32[8]/256": 5.0,
    "prioritized/f32[171]/256": 5.0,
    "uniform/u8[4,84,84]/32": 2.0,
    "bytes/u8[4,84,84]": 7.0,
    "per_cost/f32[171]/256": 1 / 1.6,
}
# Forms of the peers that store less, for the case that counts bytes: what the peer calls them.
SMALL_FORMS = {"sb3": "optimize_memory_usage", "cpprb": "stack_compress", "tianshou": "stack_num"}
# The ratio of bytes is against this peer's buffer as it comes.
BYTES_PEER = "sb3"


def run(settings: ReplaySettings) -> list[Case]:
    """Measure, print, and give the cases."""
    stages = plan(settings)
    peers = programs(settings)
    machine, cases = replay.measure(settings, peers)
    by_name = {case.name: case for case in cases}
    for stage in filter(replay.counts_bytes, stages):
        add_bytes(by_name[f"bytes/{stage.obs.name}"], stage, peers)
    for name, goal in GOALS.items():
        if name in by_name:
            by_name[name].goal = goal
    report("replay", machine, cases, as_json=settings.json)
    return cases


def programs(settings: ReplaySettings) -> dict[str, BufferProgram]:
    """The peers that were asked for and are installed."""
    python = installed.find_python()
    peers = installed.choose(settings.against, python)
    if python is None:
        if settings.against is None:
            print(installed.HOW_TO_GET, file=sys.stderr)
        return {}
    return {
        peer: BufferProgram(installed.program(python, "replay_worker", peer), PACKAGES[peer].has_prioritized)
        for peer in peers
    }


def add_bytes(case: Case, stage: Stage, peers: Mapping[str, BufferProgram]) -> None:
    """Memory per transition of SB3's buffer as it comes; the smaller forms of all peers stand beside it."""
    if stage.other_bytes > allowed_bytes()[0]:
        return
    small = {peer: program for peer, program in peers.items() if peer in SMALL_FORMS}
    with ExitStack() as closing, progress("bench replay", len(small)) as bar:
        buffers = Buffers(small, closing, bar)
        for peer in list(buffers.children):
            bar.show(f"{case.name} {peer}")
            if peer == BYTES_PEER:
                taken = buffers.open(peer, stage)
                if taken is not None:
                    case.peers[peer] = [taken / stage.capacity]
            taken = buffers.open(peer, stage, small=True)
            if taken is not None:
                case.baselines[f"{peer} {SMALL_FORMS[peer]}"] = [taken / stage.capacity]
            buffers.close(peer)
            bar.advance()
