"""`freewheel bench NAME`: the benchmarks, with a typed flag for each setting."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import tyro

from freewheel.bench.pixels_settings import PixelsSettings
from freewheel.bench.settings import (
    DqnSettings,
    LearnSettings,
    LedgerSettings,
    LocksSettings,
    PpoSettings,
    ReplaySettings,
    SpeedupSettings,
    UpdateSettings,
    WeightsSettings,
    WorldsSettings,
)
from freewheel.run.threads import limit_threads

# Each benchmark is a module of freewheel.bench with a run(settings); it is imported only when it is called.
SETTINGS: dict[str, Callable[..., Any]] = {
    "replay": ReplaySettings,
    "weights": WeightsSettings,
    "ledger": LedgerSettings,
    "update": UpdateSettings,
    "dqn": DqnSettings,
    "ppo": PpoSettings,
    "pixels": PixelsSettings,
    "worlds": WorldsSettings,
    "locks": LocksSettings,
    "speedup": SpeedupSettings,
    "learn": LearnSettings,
}


def main(arguments: Sequence[str]) -> int:
    settings = tyro.extras.subcommand_cli_from_dict(
        SETTINGS,
        prog="freewheel bench",
        description="Measure our parts against other projects' parts, in interleaved rounds of one run.",
        args=list(arguments),
    )
    limit_threads(1)  # before torch is imported
    name = next(name for name, kind in SETTINGS.items() if kind is type(settings))
    done = importlib.import_module(f"freewheel.bench.{name}").run(settings)
    if isinstance(settings, LearnSettings):
        return 0 if all(row.has_passed for row in done) else 1
    return 0
