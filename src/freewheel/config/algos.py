"""Algorithms by name: a file of `algos/`, or module:name from outside. Each brings its own settings."""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path
from typing import Any

from freewheel.config.near import nearest
from freewheel.errors import ConfigError
from freewheel.imports import find_name

FOLDER = Path(__file__).parents[1] / "algos"
# The class that a file of `algos/` is an algorithm by.
CLASS = "Algorithm"


@cache
def names() -> tuple[str, ...]:
    """Of the algorithms that come with the package; none of them is imported for it."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.py") if f"\nclass {CLASS}" in path.read_text()))


def find_algo(name: str) -> Any:
    """The class of an algorithm. One from outside is imported, as it was named by the user."""
    if ":" in name:
        found = find_name(name, "Name the class of an algorithm.")
        for needed in ("Settings", "policy", "memory", "pace"):  # losses are made with the network
            if not hasattr(found, needed):
                raise ConfigError(
                    f"algo={name} has no {needed}: it is no algorithm. docs/algorithms.md says what one needs."
                )
        return found
    if name not in names():
        raise ConfigError(f"algo={name!r} is not known{nearest(name, names())}")
    return getattr(importlib.import_module(f"freewheel.algos.{name}"), CLASS)
