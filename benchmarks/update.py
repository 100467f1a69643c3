"""`python -m benchmarks update`: `freewheel bench update` with JAX in the same rounds."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks import installed
from benchmarks.settings import UpdateSettings
from freewheel.bench import update
from freewheel.bench.checks import check_names
from freewheel.bench.child import Child, PeerFailed
from freewheel.bench.harness import Bar, Case, Measure, report
from freewheel.bench.update import Figures, Way, Ways
from freewheel.errors import ConfigError

JAX = ("jax_jit", "jax_scan32")
WAYS = (*update.PLAIN, *JAX)
GOALS = {"update/compiled_vs_jax/128": 1.0, "update/compiled_vs_jax/512": 1.0}

# XLA compiles within seconds; the deadline is for a busy machine.
OPEN_TIMEOUT_S = 120.0
MEASURE_TIMEOUT_S = 60.0


def run(settings: UpdateSettings) -> list[Case]:
    """Measure, print, and give the cases."""
    if settings.algo != "dqn":
        return update.run_algo(settings)
    against = list(WAYS) if settings.against is None else check_names(settings.against, WAYS, "way")
    jax_ways = [way for way in against if way in JAX]
    python = python_for(jax_ways, is_asked=settings.against is not None)
    versions: dict[str, str] = {}

    def open_more(closing: ExitStack, bar: Bar) -> Ways:
        return {} if python is None else open_jax(python, jax_ways, settings, versions, closing, bar)

    plain = [way for way in against if way not in JAX]
    machine, ways, figures = update.measure(settings, plain, open_more)
    machine["versions"] |= versions
    cases = []
    for rows in settings.batches:
        for case in update.make_cases(rows, settings.ours, ways, figures):
            cases += [case, *against_jax(case, rows, figures)]
    report("update", machine, cases, as_json=settings.json)
    return cases


def python_for(jax_ways: Sequence[str], *, is_asked: bool) -> Path | None:
    """The interpreter that has JAX; None when there is none and nobody asked for it by name."""
    if not jax_ways:
        return None
    python = installed.find_python()
    if python is None:
        if is_asked:
            raise ConfigError(f"{', '.join(jax_ways)}: {installed.HOW_TO_GET}")
        print(installed.HOW_TO_GET, file=sys.stderr)
    return python


def open_jax(
    python: Path,
    jax_ways: Sequence[str],
    settings: UpdateSettings,
    versions: dict[str, str],
    closing: ExitStack,
    bar: Bar,
) -> Ways:
    """JAX's ways past their first updates; none of them when its process fails."""
    opened: Ways = {}
    try:
        child = closing.enter_context(Child("jax", installed.program(python, "update_worker")))
        for rows in settings.batches:
            for way in jax_ways:
                bar.show(f"{way}, batch {rows}: first updates")
                answer = child.ask({"op": "open", "way": way, "rows": rows}, OPEN_TIMEOUT_S)
                measure = _measure(child, way, rows, settings.seconds)
                opened[f"update/{rows}", way] = Way(measure, float(answer["loss"]), float(answer["first_s"]))
    except PeerFailed as error:
        print(f"{error}\njax is left out. 'make peers' installs it.", file=sys.stderr)
        return {}
    versions["jax"] = child.greeting["version"]
    return opened


def against_jax(case: Case, rows: int, figures: Figures) -> list[Case]:
    """The same figures against the better form of JAX."""
    peers = {way: figures[f"update/{rows}", way] for way in JAX if (f"update/{rows}", way) in figures}
    name = case.name.replace(f"/{rows}", f"_vs_jax/{rows}")
    return [Case(name, case.unit, case.ours, peers=peers, goal=GOALS.get(name))] if peers else []


def _measure(child: Child, way: str, rows: int, seconds: float) -> Measure:
    order = {"op": "measure", "way": way, "rows": rows, "seconds": seconds}
    return lambda: float(child.ask(order, MEASURE_TIMEOUT_S + 3 * seconds)["us"])
