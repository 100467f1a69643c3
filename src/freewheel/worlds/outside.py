"""Worlds from outside the package: world.kind as module:name."""

from __future__ import annotations

from typing import Any

from freewheel.config import WorldConfig
from freewheel.errors import ConfigError, EnvError, FreewheelError
from freewheel.worlds.find import find_import
from freewheel.worlds.world import World

PARTS = ("name", "may_rest", "groups", "recv", "send", "close", "state", "set_state")


def make_outside(env: Any, config: WorldConfig, seed: int, first_lane: int = 0) -> World:
    """The world that `module:name` makes. `env` reaches it as it was given; nobody here looks at it."""
    make = find_import(config.kind, "a world")
    try:
        world: World = make(env, config, seed, first_lane=first_lane)
    except FreewheelError:
        raise
    except Exception as error:
        raise EnvError(
            f"world.kind={config.kind} raised {type(error).__name__} while it was made: {error}. "
            "It is called with (env, config, seed, first_lane=...)."
        ) from error
    _check(world, config)
    return world


def _check(world: World, config: WorldConfig) -> None:
    """Refuses what is no world, and a sole group with other lanes than the settings say: replay and actors go by those."""
    missing = [part for part in PARTS if not hasattr(world, part)]
    if missing:
        raise ConfigError(
            f"world.kind={config.kind} made {type(world).__name__}, which has no {', '.join(missing)}. "
            "freewheel/worlds/world.py says what a world has."
        )
    if len(world.groups) == 1 and world.groups[0].num_lanes != config.lanes:
        world.close()
        raise ConfigError(
            f"world.kind={config.kind} made {world.groups[0].num_lanes} lanes, not world.lanes={config.lanes}. "
            "Let it make as many as config.lanes."
        )
