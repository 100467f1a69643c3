"""`freewheel doctor [ENV]`: checks the machine and the env before a training."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from freewheel.cli.train import parse
from freewheel.config import Config, assemble
from freewheel.config.assemble import read_preset
from freewheel.doctor.facts import ENV, MACHINE, SOFTWARE, Fact
from freewheel.doctor.machine_facts import machine_facts
from freewheel.doctor.trial import try_apart
from freewheel.machine.cores import num_cores
from freewheel.machine.worker_count import LEAST_S
from freewheel.machine.world_kind import many
from freewheel.run.layout import Layout, choose

COLOURS = {"ok": "green", "warning": "yellow", "problem": "bold red"}
MEASURED_WORKERS = f"1, or one per core if that measures faster (for updates on the CPU over {1e3 * LEAST_S:.0f} ms)"
# Columns without a terminal, as in the log of a job.
PLAIN_WIDTH = 120


@dataclass(frozen=True)
class DoctorFlags:
    """Flags of the command itself."""

    preset: str = "auto"
    """As in freewheel train."""

    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print everything as a JSON object."""


DOC = """Check the machine, and with ENV also the env, before a training. Takes the same settings as `train`.

The exit code is 0 if `train` would work, 1 if there is a problem, 2 if the command line is wrong."""


def main(arguments: Sequence[str]) -> int:
    env, args, given = parse(arguments, DoctorFlags, "freewheel doctor [ENV]", DOC)
    config = assemble(env, given, args.preset)
    facts = examine(config, args.preset)
    layout = choose(_settled(config, facts), num_cores())
    if args.json:
        print(json.dumps(_record(env, facts, layout)))
    else:
        show(config, facts, layout)
    return 1 if _count(facts, "problem") else 0


def examine(config: Config, preset: str = "auto") -> list[Fact]:
    """Facts about machine, software and env. Raises ConfigError for an env that does not exist."""
    with Console(stderr=True).status(f"examining {config.env or 'this machine'} ..."):
        tried = try_apart(config)
    facts = [*machine_facts(config), *_preset(config, preset), *tried]
    return sorted(facts, key=lambda fact: (MACHINE, SOFTWARE, ENV).index(fact.group))


def _preset(config: Config, preset: str) -> Iterator[Fact]:
    if config.env:
        name = config.env if preset == "auto" else preset
        count = len(read_preset(config.env, config.algo, preset))
        shown = f"{name}, with {count} settings for {config.algo}" if count else f"none for {config.algo}"
        yield Fact(ENV, "preset", shown, name if count else None)


def _settled(config: Config, facts: Sequence[Fact]) -> Config:
    """The settings with the world that the examination chose, if it came that far."""
    world = _value(facts, "world") or {}
    chosen = {name: world[name] for name in ("kind", "workers", "threads") if name in world}
    return dataclasses.replace(config, world=dataclasses.replace(config.world, **chosen))


def _value(facts: Sequence[Fact], name: str) -> Any:
    """The value of a fact about the env; None if it is not known."""
    return next((fact.value for fact in facts if (fact.group, fact.name) == (ENV, name)), None)


def show(config: Config, facts: Sequence[Fact], layout: Layout) -> None:
    """A table per group; tracebacks come first, on standard error."""
    for fact in facts:
        if fact.trace:
            print(_printable(fact.trace.rstrip()), end="\n\n", file=sys.stderr)
    is_plain = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    console = Console(width=PLAIN_WIDTH if is_plain else None, highlight=False)
    for group in dict.fromkeys(fact.group for fact in facts):
        console.print(f"[bold]{escape(config.env if group == ENV else group)}[/]")
        console.print(_table([fact for fact in facts if fact.group == group]), "")
    console.print("[bold]layout[/]")
    rows = _layout_rows(config, facts, layout)
    console.print(_columns(("", name, escape(value)) for name, value in rows.items()), "")
    console.print(_verdict(config.env, facts))


def _table(facts: Sequence[Fact]) -> Table:
    rows = []
    for fact in facts:
        cure = f"\n[italic]{escape(_printable(fact.cure))}[/]" if fact.cure else ""
        text = escape(_printable(fact.shown)) + cure
        rows.append((f"[{COLOURS[fact.state]}]{fact.state}[/]", escape(fact.name), text))
    return _columns(rows)


def _columns(rows: Iterable[tuple[str, str, str]]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(width=7, no_wrap=True)
    table.add_column(min_width=13, no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _layout_rows(config: Config, facts: Sequence[Fact], layout: Layout) -> dict[str, str]:
    lanes = sorted(set(layout.lanes_per_actor))
    each = f"{' or '.join(map(str, lanes))} lane{'s' * (lanes[-1] > 1)}{' each' * (layout.actors > 1)}"
    update = _value(facts, "update") or {"threads": layout.threads["learner"]}
    threads = update["threads"] or "the run measures the fastest number at its start"
    rows: dict[str, str] = {"runtime": layout.runtime}
    if world := _value(facts, "world"):
        in_pool = f"pool, {many(world['workers'], world['threads'])}"
        rows["world"] = in_pool if world["kind"] == "pool" else world["kind"]
    if layout.runtime == "local":
        workers = layout.learner_workers or (1 if config.learner.compile == "on" else MEASURED_WORKERS)
        rows["actors"] = f"{layout.actors}, with {each}"
        rows["learner"] = f"workers: {workers}; threads: {threads}"
    else:
        rows["process"] = f"1, with {each}; threads: {threads}"
    return {**rows, "because": layout.reason}


def _verdict(env: str, facts: Sequence[Fact]) -> str:
    problems, warnings = _count(facts, "problem"), _count(facts, "warning")
    what = f"freewheel train {env}" if env else "freewheel train"
    told = f"{problems} problem{'' if problems == 1 else 's'}, {warnings} warning{'' if warnings == 1 else 's'}"
    colour = COLOURS["problem" if problems else "ok"]
    return f"[{colour}]{escape(what)} would {'fail' if problems else 'work'}[/]: {told}."


def _record(env: str, facts: Sequence[Fact], layout: Layout) -> dict[str, Any]:
    return {
        "env": env or None,
        "works": not _count(facts, "problem"),
        "problems": _count(facts, "problem"),
        "warnings": _count(facts, "warning"),
        "facts": [vars(fact) for fact in facts],
        "world": _value(facts, "world"),
        "layout": dataclasses.asdict(layout),
    }


def _count(facts: Sequence[Fact], state: str) -> int:
    return sum(fact.state == state for fact in facts)


def _printable(text: str) -> str:
    """What an env printed, without control codes for the terminal."""
    return "".join(char if char.isprintable() or char in "\n\t" else "?" for char in text)
