"""What the settings of a world may be."""

from __future__ import annotations

import json
from typing import Any

from freewheel.config.near import nearest
from freewheel.config.parts import WorldConfig
from freewheel.errors import ConfigError
from freewheel.imports import is_import

KINDS = ("auto", "inline", "pool", "vector")


def check_world(world: WorldConfig) -> None:
    check_kind(world.kind)
    read_kwargs(world)
    if world.min_ready > world.lanes:
        raise ConfigError(
            f"world.min_ready={world.min_ready} exceeds world.lanes={world.lanes}: so many are never ready. "
            "Lower the first or raise the second."
        )


def read_kwargs(world: WorldConfig) -> dict[str, Any]:
    try:
        kwargs = json.loads(world.kwargs)
    except ValueError as error:
        raise ConfigError(f"world.kwargs={world.kwargs!r} is not JSON: {error}.") from error
    if not isinstance(kwargs, dict):
        raise ConfigError(f'world.kwargs={world.kwargs!r} must be a JSON object, such as {{"size": 4}}.')
    return kwargs


def check_kind(kind: str) -> None:
    """Whether there is such a module is found out where the world is made."""
    if kind not in KINDS and not is_import(kind):
        raise ConfigError(f"world.kind={kind!r} is not known{nearest(kind, (*KINDS, 'module:name'))}")
