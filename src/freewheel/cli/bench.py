"""`freewheel bench NAME`: what the parts cost on this machine, with a typed flag for each setting."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import tyro

from freewheel.bench import settings as kinds
from freewheel.machine.threads import limit_threads

# Each benchmark is a module of freewheel.bench with a run(settings); it is imported only when it is called.
SETTINGS: dict[str, Callable[..., Any]] = {
    "replay": kinds.ReplaySettings,
    "weights": kinds.WeightsSettings,
    "ledger": kinds.LedgerSettings,
    "update": kinds.UpdateSettings,
    "worlds": kinds.WorldsSettings,
    "speedup": kinds.SpeedupSettings,
}


def main(arguments: Sequence[str]) -> int:
    settings = tyro.extras.subcommand_cli_from_dict(
        SETTINGS,
        prog="freewheel bench",
        description="Measure the parts of Freewheel on this machine. Comparisons with other projects are in benchmarks/ of the repository.",
        args=list(arguments),
    )
    limit_threads(1)  # before torch is imported
    name = next(name for name, kind in SETTINGS.items() if kind is type(settings))
    importlib.import_module(f"freewheel.bench.{name}").run(settings)
    return 0
