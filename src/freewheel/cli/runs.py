"""`freewheel runs`: the runs on disk, with their returns and ages; `runs remove` and `runs clean` remove some."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from freewheel.errors import CheckpointError, ConfigError
from freewheel.store.folder import DEFAULT_ROOT, RunFolder, list_runs, open_run, remove_run


@dataclass(frozen=True)
class ListSettings:
    """List the runs. 'freewheel runs remove NAME...' removes some, 'freewheel runs clean --keep N' all but the newest."""

    root: Path = DEFAULT_ROOT
    """Where the runs are."""

    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print the list as a JSON object on the last line."""


@dataclass(frozen=True)
class RemoveSettings:
    """Remove runs with their checkpoints and logs. A run that is in use stays."""

    names: tyro.conf.Positional[tuple[str, ...]]
    """Names of runs, as 'freewheel runs' shows them."""

    root: Path = DEFAULT_ROOT
    """Where the runs are."""

    yes: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Do not ask."""


@dataclass(frozen=True)
class CleanSettings:
    """Remove all runs but the newest. A run that is in use stays."""

    keep: int
    """How many of the newest runs stay."""

    root: Path = DEFAULT_ROOT
    """Where the runs are."""

    yes: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Do not ask."""


@dataclass(frozen=True)
class Line:
    """One run as the table and the JSON show it."""

    name: str
    env: str
    algo: str
    seed: int
    steps: int | None
    return_mean: float | None
    eval_return_mean: float | None
    age_s: float
    status: str
    bytes: int


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
        print(json.dumps({"runs": [dataclasses.asdict(line) for line in lines]}))
    elif not lines:
        print(f"There are no runs in {settings.root.absolute()}. 'freewheel train ENV' makes one.")
    else:
        _print_table(lines)
    for run in runs:
        if run.problem:
            print(f"damaged: {run.problem}", file=sys.stderr)


def remove(settings: RemoveSettings) -> None:
    if not settings.names:
        raise ConfigError("which runs? Give their names; 'freewheel runs' lists them.")
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


def line_of(run: RunFolder) -> Line:
    """A run's figures: the final ones if it has ended, else those it told last."""
    figures: dict[str, Any] = {}
    status = "damaged"
    if not run.problem:
        try:
            told = run.status()
            figures, status = {**told, **(run.result() or {})}, str(told["status"])
        except (CheckpointError, KeyError):
            status = "damaged"
    return Line(
        run.name,
        run.env,
        run.algo,
        run.seed,
        figures.get("steps"),
        figures.get("return_mean"),
        figures.get("eval_return_mean"),
        max(time.time() - run.started_s, 0.0),
        status,
        run.num_bytes(),
    )


def _child(root: Path, name: str) -> RunFolder:
    """A run that lies in `root` itself: a name that leads elsewhere is refused."""
    if name in ("", ".", "..") or name.startswith(".") or Path(name).name != name or (root / name).is_symlink():
        raise ConfigError(f"{name!r} is not the name of a run in {root.absolute()}; only those are removed.")
    for run in list_runs(root):
        if run.name == name:
            return run
    return open_run(root / name, root)  # says what is near, or why it is no run


def _remove(runs: Sequence[RunFolder], is_sure: bool) -> None:
    busy = [run.name for run in runs if run.is_in_use()]
    if busy:
        raise ConfigError(f"in use, so nothing was removed: {', '.join(busy)}. Stop the training first.")
    if not is_sure:
        _ask(runs)
    for run in runs:
        remove_run(run)
        print(f"removed {run.name}")


def _ask(runs: Sequence[RunFolder]) -> None:
    for run in runs:
        print(f"{run.name}  {_size(run.num_bytes())}")
    if not sys.stdin.isatty():
        raise ConfigError("nothing was removed: there is no terminal to ask at. Add --yes if you mean it.")
    if input(f"Remove {'this run' if len(runs) == 1 else f'these {len(runs)} runs'}? [y/N] ").strip().lower() != "y":
        raise ConfigError("nothing was removed.")


def _print_table(lines: Sequence[Line]) -> None:
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
        cells = [line.name, line.env, line.algo, str(line.seed), _figure(line.steps), _figure(line.return_mean)]
        cells += [_figure(line.eval_return_mean), _age(line.age_s), line.status, _size(line.bytes)]
        table.add_row(*(_escaped(cell) for cell in cells))
    console.print(table)


def _escaped(text: str) -> str:
    """What a file said, without markup and control codes."""
    from rich.markup import escape

    return escape("".join(char if char.isprintable() else "?" for char in text))


def _figure(value: object) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.1f}" if isinstance(value, float) else "-"


def _age(seconds: float) -> str:
    for unit, length_s in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length_s:
            return f"{seconds / length_s:.0f} {unit}"
    return f"{seconds:.0f} s"


def _size(num_bytes: float) -> str:
    for unit in ("B", "kB", "MB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} GB"
