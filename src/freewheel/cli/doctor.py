"""`freewheel doctor [ENV]`: what this machine and this env would do in `train`, before anything starts."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from freewheel.cli.train import SHORT, defaults_of, given_names, refuse_unknown, value_among
from freewheel.config import Config, assemble
from freewheel.config.assemble import known, read_preset
from freewheel.config.check import value_of
from freewheel.doctor.facts import Fact
from freewheel.doctor.machine_facts import machine_facts
from freewheel.doctor.trial import try_apart
from freewheel.machine.cores import num_cores
from freewheel.machine.worker_count import LEAST_S
from freewheel.run.layout import Layout, choose

COLOURS = {"ok": "green", "warning": "yellow", "problem": "bold red"}
MEASURED_WORKERS = f"1, or one per core if that measures faster, where an update on one thread of the CPU takes over {1e3 * LEAST_S:.0f} ms"
# Where the output is no terminal; a line of the log of a machine elsewhere.
PLAIN_WIDTH = 120


@dataclass(frozen=True)
class DoctorFlags:
    """What the command takes beside the settings of a run."""

    preset: str = "auto"
    """auto: the env's own or its family's, if there is one; none; a preset's name; a TOML file; or several with commas, of which later ones win."""

    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print everything as a JSON object."""


DOC = """Look at the machine, and with ENV at the env as `train` would use it. Takes the settings that `train` takes.

The exit code is 0 when `train` would work, 1 when something is a problem, 2 when the call is wrong."""


def main(arguments: Sequence[str]) -> int:
    words = [SHORT.get(name, name) + equals + value for name, equals, value in (w.partition("=") for w in arguments)]
    env = words.pop(0) if words and not words[0].startswith("-") else ""
    preset = value_among(words, "preset") or "auto"
    shown = assemble(env, {"algo": value_among(words, "algo") or "dqn"}, preset)
    settings: Any = type(shown)
    refuse_unknown(words, shown, DoctorFlags)
    default = defaults_of(shown, DoctorFlags, preset)
    args = tyro.cli(type(default), prog="freewheel doctor [ENV]", args=words, default=default, description=DOC)
    given = {name: value_of(args, name) for name in given_names(words, known(settings))}
    config = assemble(env, given, args.preset)
    facts = examine(config, args.preset)
    layout = choose(_settled(config, facts), num_cores())
    if args.json:
        print(json.dumps(_record(env, facts, layout)))
    else:
        show(config, facts, layout)
    return 1 if _count(facts, "problem") else 0


def examine(config: Config, preset: str = "auto") -> list[Fact]:
    """Machine, software and env; an env that cannot be found is a ConfigError."""
    with Console(stderr=True).status(f"examining {config.env or 'this machine'} ..."):
        tried = try_apart(config)
    facts = [*machine_facts(config), *_preset(config, preset), *tried]
    order = {name: i for i, name in enumerate(("machine", "software", "env"))}
    return sorted(facts, key=lambda fact: order[fact.group])


def _preset(config: Config, preset: str) -> Iterator[Fact]:
    if not config.env:
        return
    name = config.env if preset == "auto" else preset
    count = len(read_preset(config.env, config.algo, preset))
    if count:
        yield Fact("env", "preset", f"{name}, with {count} settings for {config.algo}", name)
    else:
        yield Fact("env", "preset", f"none for {config.algo} here; settings begin with the defaults", None)


def _settled(config: Config, facts: Sequence[Fact]) -> Config:
    """With the world that the examination chose; as it was where it did not come so far."""
    world = _value(facts, "world")
    if not world:
        return config
    chosen = {name: world[name] for name in ("kind", "workers", "threads")}
    return dataclasses.replace(config, world=dataclasses.replace(config.world, **chosen))


def _value(facts: Sequence[Fact], name: str) -> Any:
    """What was found out about the env under this name, None if that was not."""
    return next((fact.value for fact in facts if (fact.group, fact.name) == ("env", name)), None)


def show(config: Config, facts: Sequence[Fact], layout: Layout) -> None:
    """A table per group; tracebacks come first, on standard error."""
    for fact in facts:
        if fact.trace:
            print(_printable(fact.trace.rstrip()), end="\n\n", file=sys.stderr)
    is_plain = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    console = Console(width=PLAIN_WIDTH if is_plain else None, highlight=False)
    for group in dict.fromkeys(fact.group for fact in facts):
        console.print(f"[bold]{escape(config.env if group == 'env' else group)}[/]")
        console.print(_table([fact for fact in facts if fact.group == group]), "")
    console.print("[bold]layout[/]")
    console.print(_layout_table(config, facts, layout), "")
    console.print(_verdict(config.env, facts))


def _table(facts: Sequence[Fact]) -> Table:
    table = _empty()
    for fact in facts:
        colour = COLOURS[fact.state]
        text = escape(_printable(fact.shown))
        if fact.cure:
            text += f"\n[italic]{escape(_printable(fact.cure))}[/]"
        table.add_row(f"[{colour}]{fact.state}[/]", escape(fact.name), text)
    return table


def _layout_table(config: Config, facts: Sequence[Fact], layout: Layout) -> Table:
    table = _empty()
    for name, value in _layout_rows(config, facts, layout).items():
        table.add_row("", name, escape(value))
    return table


def _layout_rows(config: Config, facts: Sequence[Fact], layout: Layout) -> dict[str, str]:
    lanes = sorted(set(layout.lanes_per_actor))
    each = " or ".join(map(str, lanes))
    update = _value(facts, "update") or {"threads": layout.threads["learner"]}
    threads = update["threads"] or "whichever number a trial at the start finds fastest"
    is_shared = config.learner.compile != "on"
    workers = layout.learner_workers or (MEASURED_WORKERS if is_shared else 1)
    rows: dict[str, str] = {"runtime": layout.runtime}
    if world := _value(facts, "world"):
        rows["world"] = _world_row(world)
    if layout.runtime == "local":
        rows["actors"] = (
            f"{layout.actors}, with {each} lane{'s' if lanes[-1] > 1 else ''}{' each' * (layout.actors > 1)}"
        )
        rows["learner"] = f"workers: {workers}; threads: {threads}"
    else:
        rows["process"] = f"1, with {each} lanes; threads: {threads}"
    return {**rows, "because": layout.reason}


def _world_row(world: dict[str, Any]) -> str:
    if world["kind"] != "pool":
        return str(world["kind"])
    threads = f" with {world['threads']} threads each" if world["threads"] > 1 else ""
    return f"pool, {world['workers']} worker{'s' * (world['workers'] > 1)}{threads}"


def _empty() -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(width=7, no_wrap=True)
    table.add_column(min_width=13, no_wrap=True)
    table.add_column(overflow="fold")
    return table


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
        "facts": [fact.record() for fact in facts],
        "world": _value(facts, "world"),
        "layout": dataclasses.asdict(layout),
    }


def _count(facts: Sequence[Fact], state: str) -> int:
    return sum(fact.state == state for fact in facts)


def _printable(text: str) -> str:
    """An env's own words may not steer the terminal."""
    return "".join(char if char.isprintable() or char in "\n\t" else "?" for char in text)
