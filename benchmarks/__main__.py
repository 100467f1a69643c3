"""`python -m benchmarks NAME`: the comparisons with other projects, with a typed flag for each setting."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import tyro

from benchmarks.pixels.settings import PixelsSettings
from benchmarks.settings import (
    ControlSettings,
    DqnSettings,
    LearnSettings,
    LocksSettings,
    PpoSettings,
    ReplaySettings,
    UpdateSettings,
    WeightsSettings,
    WorldsSettings,
)
from freewheel.errors import ConfigError, FreewheelError
from freewheel.machine.threads import limit_threads

SETTINGS: dict[str, Callable[..., Any]] = {
    "dqn": DqnSettings,
    "ppo": PpoSettings,
    "control": ControlSettings,
    "pixels": PixelsSettings,
    "worlds": WorldsSettings,
    "replay": ReplaySettings,
    "update": UpdateSettings,
    "weights": WeightsSettings,
    "locks": LocksSettings,
    "learn": LearnSettings,
}
# Each has a module with a run(settings), imported only when it is called.
MODULES = {name: f"benchmarks.{name}" for name in ("worlds", "replay", "update", "weights")}
MODULES |= {name: f"benchmarks.{name}.bench" for name in ("dqn", "ppo", "control", "pixels", "locks", "learn")}

USER_MUST_ACT, FAILED, INTERRUPTED = 2, 1, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one benchmark; the value is the exit code."""
    settings = tyro.extras.subcommand_cli_from_dict(
        SETTINGS,
        prog="python -m benchmarks",
        description="Measure Freewheel against other projects, in interleaved rounds of one run.",
        args=list(sys.argv[1:] if arguments is None else arguments),
    )
    limit_threads(1)  # before torch is imported
    name = next(name for name, kind in SETTINGS.items() if kind is type(settings))
    try:
        done = importlib.import_module(MODULES[name]).run(settings)
    except FreewheelError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return USER_MUST_ACT if isinstance(error, ConfigError) else FAILED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    if isinstance(settings, LearnSettings):
        return 0 if all(row.has_passed for row in done) else FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
