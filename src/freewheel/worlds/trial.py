"""`choose_world` in a throwaway process: an env that hangs or crashes while it is measured does not harm the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from freewheel.config import WorldConfig
from freewheel.machine import world_kind
from freewheel.machine.cores import num_cores
from freewheel.machine.trial import Choice, throwaway
from freewheel.worlds.make import choose_world, is_settled
from freewheel.worlds.pool import START_S

# The settings that a measurement decides.
DECIDED = ("kind", "workers", "threads")


def choose_apart(env: Any, config: WorldConfig, actors: int, step_timeout_s: float) -> Choice[WorldConfig]:
    """`choose_world` that always returns: an env that hangs, crashes or raises is stepped inline, where the run reports the error."""
    if is_settled(env, config):
        return Choice(config)
    # Making an env may start other programs.
    work = (_choose, env, config, num_cores(), actors)
    report = throwaway(*work, timeout_s=step_timeout_s, start_timeout_s=START_S, needs=(env,))
    if not report.told:
        return world_kind.unmeasured(config, report.failure, num_cores())
    decided, reason, times = report.told[0]
    return Choice(replace(config, **decided), reason, times)


def _choose(env: Any, config: WorldConfig, cores: int, actors: int, tell: Callable[..., None]) -> None:
    choice = choose_world(env, config, cores, actors, tell)
    tell([{name: getattr(choice.chosen, name) for name in DECIDED}, choice.reason, choice.times])
