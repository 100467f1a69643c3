"""`freewheel runs`: the runs on disk, with their returns and ages; `runs remove` and `runs clean` remove some."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from freewheel.errors import CheckpointError, ConfigError
from freewheel.memory.segment import format_bytes
from freewheel.report.progress import number
from freewheel.store.folder import DEFAULT_ROOT, RunFolder, list_runs, open_run, remove_run


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What all three commands take."""

    root: Path = DEFAULT_ROOT
    """Where the runs are."""


@dataclass(frozen=True, kw_only=True)
class ListSettings(Settings):
    """List the runs. 'freewheel runs remove NAME...' removes some of them, 'freewheel runs clean --keep N' all but the newest N."""

    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print the list as a JSON object on the last line."""


@dataclass(frozen=True, kw_only=True)
class RemoveSettings(Settings):
    """Remove runs with their checkpoints and logs. Nothing is removed if one of them is in use."""

    names: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="NAME...")]
    """Names of runs, as 'freewheel runs' shows them."""

    yes: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Do not ask for confirmation."""


@dataclass(frozen=True, kw_only=True)
class CleanSettings(Settings):
    """Remove all runs but the newest. Runs in use are kept."""

    keep: int
    """How many of the newest runs to keep."""

    yes: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Do not ask for confirmation."""


def main(arguments: Sequence[str]) -> None:
    words = list(arguments)
    if words[:1] == ["remove"]:
        remove(tyro.cli(RemoveSettings, prog="freewheel runs remove", args=words[1:]))
    elif words[:1] == ["clean"]:
        clean(tyro.cli(CleanSettings, prog="freewheel runs clean", args=words[1:]))
    else:
        show(tyro.cli(ListSettings, prog="freewheel runs", args=words))


def show(settings: ListSettings) -> None:
    runs = list_runs(settings.root)
    lines = [line_of(run) for run in runs]
    if settings.json:
        print(json.dumps({"runs": lines}))
    elif not lines:
        print(f"There are no runs in {settings.root.absolute()}. 'freewheel train ENV' makes one.")
    else:
        _print_table(lines)
    for run in runs:
        if run.problem:
            print(f"damaged: {run.problem}", file=sys.stderr)


def remove(settings: RemoveSettings) -> None:
    if not settings.names:
        raise ConfigError("no run was named. Give the names of runs; 'freewheel runs' lists them.")
    chosen = {name: _child(settings.root, name) for name in dict.fromkeys(settings.names)}
    _remove(list(chosen.values()), settings.yes)


def clean(settings: CleanSettings) -> None:
    if settings.keep < 0:
        raise ConfigError(f"--keep {settings.keep} must be at least 0.")
    runs = list_runs(settings.root)
    free = [run for run in runs[: max(len(runs) - settings.keep, 0)] if not run.is_in_use()]
    if free:
        _remove(free, settings.yes)
    else:
        print("There is nothing to remove.")


def line_of(run: RunFolder) -> dict[str, Any]:
    """One run as the table and the JSON show it: the final figures if it has ended, otherwise the last reported ones."""
    figures: dict[str, Any] = {"status": "damaged"}
    if not run.problem:
        with contextlib.suppress(CheckpointError, KeyError):
            status = run.status()
            figures = {**status, **(run.result() or {}), "status": str(status["status"])}
    return {
        "name": run.name,
        "env": run.env,
        "algo": run.algo,
        "seed": run.seed,
        **{name: figures.get(name) for name in ("steps", "return_mean", "eval_return_mean")},
        "age_s": max(time.time() - run.started_s, 0.0),
        "status": figures["status"],
        "bytes": run.num_bytes(),
    }


def _child(root: Path, name: str) -> RunFolder:
    """A run in `root` itself; refuses a name that leads elsewhere."""
    if name in ("", ".", "..") or name.startswith(".") or Path(name).name != name or (root / name).is_symlink():
        raise ConfigError(f"{name!r} is not the name of a run in {root.absolute()}; only such runs are removed.")
    for run in list_runs(root):
        if run.name == name:
            return run
    return open_run(root / name, root)  # raises, with similar names or the reason


def _remove(runs: Sequence[RunFolder], is_sure: bool) -> None:
    busy = [run.name for run in runs if run.is_in_use()]
    if busy:
        raise ConfigError(
            f"nothing was removed, as these runs are in use: {', '.join(busy)}. Stop their training first."
        )
    if not is_sure:
        _ask(runs)
    for run in runs:
        remove_run(run)
        print(f"removed {run.name}")


def _ask(runs: Sequence[RunFolder]) -> None:
    for run in runs:
        print(f"{run.name}  {format_bytes(run.num_bytes())}")
    if not sys.stdin.isatty():
        raise ConfigError(
            "nothing was removed: there is no terminal to ask for confirmation. Add --yes to remove without asking."
        )
    if input(f"Remove {'this run' if len(runs) == 1 else f'these {len(runs)} runs'}? [y/N] ").strip().lower() != "y":
        raise ConfigError("nothing was removed.")


def _print_table(lines: Sequence[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console.width = 400  # a file or a pipe gets whole names
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("run", "env", "algo", "seed", "steps", "return", "eval", "age", "status", "size"):
        is_number = column in ("seed", "steps", "return", "eval", "age", "size")
        table.add_column(column, justify="right" if is_number else "left", overflow="fold", no_wrap=column != "run")
    for line in lines:
        shown = {"seed": line["seed"], "age_s": _age(line["age_s"]), "bytes": format_bytes(line["bytes"])}
        table.add_row(*(_escaped(str(shown.get(name, _cell(value)))) for name, value in line.items()))
    console.print(table)


def _escaped(text: str) -> str:
    """Text from a file, without markup and control codes."""
    from rich.markup import escape

    return escape("".join(char if char.isprintable() else "?" for char in text))


def _cell(value: object) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return number(value) if isinstance(value, float) else str(value or "-")


def _age(seconds: float) -> str:
    for unit, length_s in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length_s:
            return f"{seconds / length_s:.0f} {unit}"
    return f"{seconds:.0f} s"
