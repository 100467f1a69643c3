"""Finds algorithms by name: a file of `algos/`, or the user's own module:name. Each brings its own settings."""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path
from typing import Any

from freewheel.errors import ConfigError, shown
from freewheel.imports import find_name, nearest

FOLDER = Path(__file__).parents[1] / "algos"
# A file of `algos/` that defines this class is an algorithm.
CLASS = "Algorithm"


@cache
def names() -> tuple[str, ...]:
    """The names of the built-in algorithms. Imports none of them: that would load torch."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.py") if f"\nclass {CLASS}" in path.read_text()))


def find_algo(name: str) -> Any:
    """The class of an algorithm."""
    if ":" in name:
        found = find_name(name, "It must be the class of an algorithm.")
        for needed in ("Settings", "policy", "memory", "pace"):  # losses are made with the network
            if not hasattr(found, needed):
                raise ConfigError(f"algo={name} has no {needed}, which every algorithm needs. See docs/algorithms.md.")
        return found
    if name not in names():
        raise ConfigError(f"algo={shown(name)} is not known{nearest(name, names())}")
    return getattr(importlib.import_module(f"freewheel.algos.{name}"), CLASS)
