"""SBX's PPO (Stable-Baselines3 in JAX) as it comes."""

import importlib
import importlib.metadata
from typing import Any

from freewheel.bench.worker.meter import Meter

from .ppo_sb3 import train_by

sbx: Any = importlib.import_module("sbx")


def version() -> str:
    return importlib.metadata.version("sbx-rl")


def train(meter: Meter, order: dict[str, Any]) -> None:
    train_by(sbx.PPO, meter, order)
