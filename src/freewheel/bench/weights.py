"""`freewheel bench weights`: one publish and one fetch, beside plain copies in one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

import torch

from freewheel.bench.checks import check_names, check_rounds
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
from freewheel.bench.settings import SIZES, WeightsSettings
from freewheel.bench.worker.weights_nets import make_net
from freewheel.bench.worker.window import Call, measure_us
from freewheel.weights.board import Board

TWO_COPIES, LOAD, CLONE_LOAD = "two_copies", "load_state_dict", "clone_load_state_dict"
# The baselines do less than a transfer: two bare copies, and a load that reads the learner's live weights.
BASELINES = (TWO_COPIES, LOAD)
WAYS = (*BASELINES, CLONE_LOAD)

GOALS = {"vs_two_copies/0.1M": 1 / 1.3, "vs_two_copies/1.7M": 1 / 1.3, "vs_clone_load/0.1M": 4.0}


class Transfers(Protocol):
    """More ways to bring weights to an actor, opened for one size of network at a time."""

    names: Sequence[str]

    def open(self, size: str, seconds: float) -> Mapping[str, Measure]: ...

    def close(self) -> None: ...


def run(settings: WeightsSettings) -> list[Case]:
    """Measure, print, and give the cases."""
    ways = list(WAYS) if settings.against is None else check_names(settings.against, WAYS, "way")
    machine, measured = measure(settings, ways)
    cases = [case for each in measured for case in (each, *comparisons(each))]
    report("weights", machine, cases, as_json=settings.json)
    return cases


def measure(
    settings: WeightsSettings, ways: Sequence[str], more: Transfers | None = None
) -> tuple[Machine, list[Case]]:
    """A case for each size: ours and these ways, and `more` of them, in the same rounds."""
    check_rounds(settings.rounds, settings.seconds)
    sizes = check_names(settings.sizes, SIZES, "size")
    torch.set_num_threads(1)
    others = [*ways, *(more.names if more else ())]
    with progress("bench weights", len(sizes) * (1 + len(others)) * settings.rounds) as bar:
        machine = describe_machine({})
        warn_if_busy(machine)
        cases = [run_size(size, ways, more, settings, bar) for size in sizes]
    return machine, cases


def run_size(size: str, ways: Sequence[str], more: Transfers | None, settings: WeightsSettings, bar: Bar) -> Case:
    case = Case(f"publish+fetch/{size}", "us")
    calls = {OURS: publish_and_fetch(size), **in_process_ways(size)}
    measures: dict[tuple[str, str], Measure] = {
        (case.name, who): partial(measure_us, calls[who], settings.seconds) for who in (OURS, *ways)
    }
    if more is not None:
        bar.show(f"opening {', '.join(more.names)}")
        measures |= {(case.name, way): one for way, one in more.open(size, settings.seconds).items()}
    figures = interleave(measures, settings.rounds, bar)
    if more is not None:
        more.close()
    case.ours = figures.pop((case.name, OURS))
    for (_, way), each in figures.items():
        (case.baselines if way in BASELINES else case.peers)[way] = each
    return case


def comparisons(case: Case) -> list[Case]:
    """The same figures against one named way each, where there is a goal."""
    size = case.name.partition("/")[2]
    compared = {f"vs_two_copies/{size}": TWO_COPIES, f"vs_clone_load/{size}": CLONE_LOAD}
    return [
        compare(case, name, way, GOALS[name])
        for name, way in compared.items()
        if name in GOALS and way in {**case.peers, **case.baselines}
    ]


def compare(case: Case, name: str, way: str, goal: float) -> Case:
    figures = {**case.peers, **case.baselines}[way]
    return Case(name, case.unit, case.ours, baselines={way: figures}, baseline=way, goal=goal)


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
