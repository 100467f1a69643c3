"""`freewheel bench weights`: one publish and one fetch, against other ways to bring weights to an actor."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

import torch

from freewheel.bench.child import Child
from freewheel.bench.harness import (
    OURS,
    Bar,
    Case,
    Measure,
    describe_machine,
    interleave,
    median,
    progress,
    report,
    warn_if_busy,
)
from freewheel.bench.installed import check_names
from freewheel.bench.peers.nets import make_net
from freewheel.bench.peers.window import Call, measure_us
from freewheel.bench.settings import SIZES, WeightsSettings, check_rounds
from freewheel.weights.board import Board

TWO_COPIES, LOAD, CLONE_LOAD = "two_copies", "load_state_dict", "clone_load_state_dict"
QUEUES = ("mp_queue", "torch_mp_queue")
# The baselines do less than a transfer: two bare copies, and a load that reads the learner's live weights.
BASELINES = (TWO_COPIES, LOAD)
WAYS = (*BASELINES, CLONE_LOAD, *QUEUES)

GOALS = {
    "vs_two_copies/0.1M": 1 / 1.3,
    "vs_two_copies/1.7M": 1 / 1.3,
    "vs_clone_load/0.1M": 4.0,
    "vs_queue/1.7M": 15.0,
}

# An actor process imports torch first.
OPEN_TIMEOUT_S = 150.0
MEASURE_TIMEOUT_S = 60.0


def run(settings: WeightsSettings) -> list[Case]:
    """Measure, print, and give the cases."""
    check_rounds(settings.rounds, settings.seconds)
    sizes = check_names(settings.sizes, SIZES, "size")
    ways = list(WAYS) if settings.against is None else check_names(settings.against, WAYS, "way")
    torch.set_num_threads(1)
    cases: list[Case] = []
    with (
        ExitStack() as closing,
        progress("bench weights", len(sizes) * (1 + len(ways)) * settings.rounds) as bar,
    ):
        machine = describe_machine({})
        warn_if_busy(machine)
        children = {}
        for way in ways:
            if way in QUEUES:
                bar.show(f"starting {way}")
                children[way] = closing.enter_context(Child(way, Path(sys.executable), "weights_worker", way))
        for size in sizes:
            cases += run_size(size, ways, children, settings, bar)
    report("weights", machine, cases, as_json=settings.json)
    return cases


def run_size(size: str, ways: list[str], children: dict[str, Child], settings: WeightsSettings, bar: Bar) -> list[Case]:
    case = Case(f"publish+fetch/{size}", "us")
    in_process = {OURS: publish_and_fetch(size), **in_process_ways(size)}
    measures: dict[tuple[str, str], Measure] = {}
    for who in (OURS, *ways):
        if who in children:
            bar.show(f"starting the actor of {who}")
            children[who].ask({"op": "open", "size": size}, OPEN_TIMEOUT_S)
            measures[case.name, who] = _by_child(children[who], settings.seconds)
        else:
            measures[case.name, who] = _here(in_process[who], settings.seconds)
    figures = interleave(measures, settings.rounds, bar)
    for child in children.values():
        child.ask({"op": "close"}, MEASURE_TIMEOUT_S)
    case.ours = figures[case.name, OURS]
    for way in ways:
        (case.baselines if way in BASELINES else case.peers)[way] = figures[case.name, way]
    return [case, *comparisons(case, size)]


def comparisons(case: Case, size: str) -> list[Case]:
    """The same figures against one named way each."""
    everybody = {**case.peers, **case.baselines}
    queues = [way for way in QUEUES if way in everybody]
    rivals = {f"vs_two_copies/{size}": TWO_COPIES, f"vs_clone_load/{size}": CLONE_LOAD}
    if queues:
        rivals[f"vs_queue/{size}"] = min(queues, key=lambda way: median(everybody[way]))
    return [
        Case(name, case.unit, case.ours, baselines={way: everybody[way]}, baseline=way, goal=GOALS.get(name))
        for name, way in rivals.items()
        if way in everybody and name in GOALS
    ]


def publish_and_fetch(size: str) -> Call:
    """Ours: the learner's flat vector to the board, and from the board to the actor's."""
    source = flat_weights(size)
    target = torch.zeros_like(source)
    board = Board(source.nbytes)
    version = board.version

    def call() -> None:
        nonlocal version
        board.publish(source)
        fetched = board.fetch(target, newer_than=version)
        if fetched is None:
            raise RuntimeError("the board had nothing new right after a publish")
        version = fetched

    call()
    if not torch.equal(source, target):
        raise RuntimeError("the fetched weights differ from the published ones")
    return call


def in_process_ways(size: str) -> dict[str, Call]:
    source, target = make_net(size), make_net(size)
    flat = flat_weights(size)
    middle, end = torch.zeros_like(flat), torch.zeros_like(flat)

    def two_copies() -> None:
        middle.copy_(flat)
        end.copy_(middle)

    return {
        TWO_COPIES: two_copies,
        LOAD: lambda: target.load_state_dict(source.state_dict()),
        CLONE_LOAD: lambda: target.load_state_dict({k: v.clone() for k, v in source.state_dict().items()}),
    }


def flat_weights(size: str) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(make_net(size).parameters()).detach().clone()


def _here(call: Call, seconds: float) -> Measure:
    return lambda: measure_us(call, seconds)


def _by_child(child: Child, seconds: float) -> Measure:
    return lambda: float(child.ask({"op": "send", "seconds": seconds}, MEASURE_TIMEOUT_S + 3 * seconds)["us"])
