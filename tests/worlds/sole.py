"""recv and send of a world with one group and one column of actions, as most tests need them."""

from __future__ import annotations

from typing import Any

from freewheel.worlds.world import TIMEOUT_S, Ready, World


def recv(world: World, timeout_s: float = TIMEOUT_S) -> Ready:
    (ready,) = world.recv(timeout_s)
    return ready


def send(world: World, lanes: Any, actions: Any) -> None:
    world.send(0, lanes, {"action": actions})
