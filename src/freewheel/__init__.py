"""Freewheel trains reinforcement-learning agents: actors and learners keep every core busy and never wait for each other."""

from __future__ import annotations

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from freewheel.algos.algo import Outcome as Outcome
    from freewheel.config import Config as Config
    from freewheel.errors import CheckpointError as CheckpointError
    from freewheel.errors import ConfigError as ConfigError
    from freewheel.errors import Diverged as Diverged
    from freewheel.errors import EnvError as EnvError
    from freewheel.errors import FreewheelError as FreewheelError
    from freewheel.errors import RoleLost as RoleLost
    from freewheel.report.episodes import Episode as Episode
    from freewheel.run.callback import Callback as Callback
    from freewheel.run.callback import Moment as Moment
    from freewheel.store.load import Policy as Policy
    from freewheel.store.load import load_policy as load  # noqa: F401
    from freewheel.train import Run as Run
    from freewheel.train import train as train

# Imported on first use: `import freewheel` starts no thread and loads no torch, so thread limits can still be set.
_NAMES = {
    "Callback": "freewheel.run.callback:Callback",
    "CheckpointError": "freewheel.errors:CheckpointError",
    "Config": "freewheel.config:Config",
    "ConfigError": "freewheel.errors:ConfigError",
    "Diverged": "freewheel.errors:Diverged",
    "EnvError": "freewheel.errors:EnvError",
    "Episode": "freewheel.report.episodes:Episode",
    "FreewheelError": "freewheel.errors:FreewheelError",
    "Moment": "freewheel.run.callback:Moment",
    "Outcome": "freewheel.algos.algo:Outcome",
    "Policy": "freewheel.store.load:Policy",
    "RoleLost": "freewheel.errors:RoleLost",
    "Run": "freewheel.train:Run",
    "load": "freewheel.store.load:load_policy",
    "train": "freewheel.train:train",
}
__all__ = list(_NAMES)


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"freewheel has no {name!r}; it has {', '.join(__all__)}.")
    module, _, attribute = _NAMES[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


class _Package(types.ModuleType):
    def __setattr__(self, name: str, value: Any) -> None:
        # Importing the module freewheel.train would replace the function.
        if name != "train":
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
