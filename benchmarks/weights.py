"""`python -m benchmarks weights`: `freewheel bench weights` with queues to another process in the same rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from benchmarks import installed
from benchmarks.settings import WeightsSettings
from freewheel.bench import weights
from freewheel.bench.checks import check_names
from freewheel.bench.child import Child
from freewheel.bench.harness import Case, Measure, median, report

QUEUES = ("mp_queue", "torch_mp_queue")
WAYS = (*weights.WAYS, *QUEUES)
GOALS = {"vs_queue/1.7M": 15.0}

# An actor process imports torch first.
OPEN_TIMEOUT_S = 150.0
MEASURE_TIMEOUT_S = 60.0


class Queues(weights.Transfers):
    """Queues of multiprocessing and of torch, each with an actor process at its end."""

    def __init__(self, names: Sequence[str], closing: ExitStack) -> None:
        self.names = names
        programs = {name: installed.program(installed.HERE, "weights_worker", name) for name in names}
        self._children = {name: closing.enter_context(Child(name, program)) for name, program in programs.items()}

    def open(self, size: str, seconds: float) -> Mapping[str, Measure]:
        for child in self._children.values():
            child.ask({"op": "open", "size": size}, OPEN_TIMEOUT_S)
        return {name: _send(child, seconds) for name, child in self._children.items()}

    def close(self) -> None:
        for child in self._children.values():
            child.ask({"op": "close"}, MEASURE_TIMEOUT_S)


def run(settings: WeightsSettings) -> list[Case]:
    """Measure, print, and give the cases."""
    ways = list(WAYS) if settings.against is None else check_names(settings.against, WAYS, "way")
    with ExitStack() as closing:
        queues = Queues([way for way in ways if way in QUEUES], closing)
        machine, measured = weights.measure(settings, [way for way in ways if way not in QUEUES], queues)
    cases = [case for each in measured for case in (each, *weights.comparisons(each), *against_queues(each))]
    report("weights", machine, cases, as_json=settings.json)
    return cases


def against_queues(case: Case) -> list[Case]:
    """The same figures against the faster queue, where there is a goal."""
    name = f"vs_queue/{case.name.partition('/')[2]}"
    queues = [way for way in QUEUES if way in case.peers]
    if not queues or name not in GOALS:
        return []
    fastest = min(queues, key=lambda way: median(case.peers[way]))
    return [weights.compare(case, name, fastest, GOALS[name])]


def _send(child: Child, seconds: float) -> Measure:
    return lambda: float(child.ask({"op": "send", "seconds": seconds}, MEASURE_TIMEOUT_S + 3 * seconds)["us"])
