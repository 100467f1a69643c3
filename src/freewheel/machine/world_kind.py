"""Trial: the fastest way to step an env: inline, in a pool, or in its own vector env.

Not cached: it takes a third of a second, and the env's code may change.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from freewheel.config import WorldConfig
from freewheel.machine.trial import Choice

# Costs of a step besides the env itself, on 2 cores with Python 3.11. A pool wakes a worker for each group of lanes.
INLINE_S = 2e-6
POOL_S = 8e-6
WAKE_S = 80e-6
# CPU time of a waiting thread around each step.
THREAD_S = 40e-6
# A small gain may be noise, and a pool needs memory and processes.
POOL_GAIN = 1.2
# The env's own vector env needs no processes.
VECTOR_GAIN = 1.05
MOST_THREADS = 256
LONG_S = 5e-4


@dataclass(frozen=True)
class Cost:
    """Seconds of one step of one lane, and whether the env spends them waiting for something else."""

    step_s: float
    core_s: float
    waits: bool


UNMEASURED = Cost(1.0, 1.0, False)  # of an env whose step failed


def choose(
    config: WorldConfig, name: str, cost: Cost, vector_s: float | None, hindrance: str, cores: int, actors: int
) -> Choice[WorldConfig]:
    """The world of world.kind=auto for an env called `name`. All worlds but a pool are stepped by `actors` processes.

    `vector_s` is the time per row of its own vector env, None without one; `hindrance` says why pool workers cannot make the env.
    """
    pool, pool_s = pool_of(config, cost, cores)
    step = f"a step takes {_time(cost.step_s)}"
    spread = f"Using a pool of {many(pool.workers, pool.threads)}: {step} and {'mostly waits' if cost.waits else 'keeps a core busy'}."
    if wants_pool(config):
        return Choice(pool, spread)
    inline_s = cost.step_s + INLINE_S
    is_vector = vector_s is not None and inline_s >= VECTOR_GAIN * vector_s
    own_s = vector_s if is_vector and vector_s is not None else inline_s
    is_better = own_s / actors >= POOL_GAIN * pool_s
    if is_better and not hindrance:
        return Choice(pool, spread)
    if is_vector:
        against = f"{_time(own_s)} per step, against {_time(inline_s)} one by one"
        return Choice(vector_of(config, cores, actors), f"Using {name}'s own vector env ({against}).")
    why = "and no core is free to share it."
    if is_better:
        why = f"which {many(pool.workers, pool.threads)} could share, but {hindrance}"
    elif cores > actors and config.lanes > 1:
        why = "too short to be worth waking a worker."
    return Choice(inline_of(config), f"Stepping the envs one by one: {step}, {why}")


def unmeasured(config: WorldConfig, why: str, cores: int) -> Choice[WorldConfig]:
    """For an env whose step failed: a pool if the settings ask for one, inline otherwise."""
    chosen = pool_of(config, UNMEASURED, cores)[0] if wants_pool(config) else inline_of(config)
    how = (
        f"Using a pool of {many(chosen.workers, chosen.threads)}"
        if chosen.kind == "pool"
        else "Stepping the envs one by one"
    )
    return Choice(chosen, f"{how}: the step could not be measured ({why}).")


def inline_of(config: WorldConfig) -> WorldConfig:
    return replace(config, kind="inline", workers=0, threads=0)


def vector_of(config: WorldConfig, cores: int, actors: int) -> WorldConfig:
    """The env's own vector env, with one thread for each core of an actor."""
    return replace(config, kind="vector", workers=0, threads=max(1, min(cores // actors, config.lanes)))


def wants_pool(config: WorldConfig) -> bool:
    return config.kind == "pool" or config.workers > 0 or config.threads > 0


def pool_of(config: WorldConfig, cost: Cost, cores: int) -> tuple[WorldConfig, float]:
    """The best pool for these lanes, and its expected seconds per row."""
    lanes = config.lanes
    if not cost.waits:
        # Two per core if steps are long: one steps while the other waits for actions.
        workers = config.workers or min(cores * (2 if cost.step_s > LONG_S else 1), lanes)
        threads = config.threads or 1
        group = max(1.0, min(lanes / workers, LONG_S / cost.step_s))
        seconds = (cost.step_s + POOL_S + WAKE_S / group) / min(workers, cores)
    else:
        workers = config.workers or min(2 * cores, lanes)
        threads = config.threads or min(math.ceil(lanes / workers), MOST_THREADS)
        seconds = max((cost.step_s + WAKE_S) / min(lanes, workers * threads), (cost.core_s + THREAD_S) / cores)
    return replace(config, kind="pool", workers=workers, threads=threads), seconds


def many(workers: int, threads: int) -> str:
    return f"{workers} worker{'s' * (workers > 1)}" + (f" with {threads} threads each" if threads > 1 else "")


def _time(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.0f} ns"
