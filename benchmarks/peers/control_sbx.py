"""SBX's SAC (Stable-Baselines3 in JAX) as it comes, with one update per step; it makes all updates of a turn in one compiled call."""

import importlib
import importlib.metadata
from typing import Any

from freewheel.bench.worker.meter import Meter

from . import control_sb3

sbx: Any = importlib.import_module("sbx")


def version() -> str:
    return importlib.metadata.version("sbx-rl")


def train(meter: Meter, order: dict[str, Any]) -> None:
    control_sb3.train(meter, order, sbx.SAC)
