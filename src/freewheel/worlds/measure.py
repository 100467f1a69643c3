"""How an env is stepped fastest here: measured on one copy at the start, with the reason in a sentence."""

from __future__ import annotations

import math
import os
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import gymnasium
import numpy as np

from freewheel.config import WorldConfig
from freewheel.errors import FreewheelError
from freewheel.spec import Space
from freewheel.worlds.legal import Legal
from freewheel.worlds.vector import VectorWorld

STEP_S = 0.12  # that one copy is stepped for
VECTOR_S = 0.08  # that the env's own vector form is stepped for
LEAST_STEPS = 3  # of a slow env
# Measured on 2 cores with Python 3.11: what a step costs beside the env itself. A pool wakes a worker for each group of lanes.
INLINE_S = 2e-6
POOL_S = 8e-6
WAKE_S = 80e-6
# A thread that waits needs the core for so long around each step.
THREAD_S = 40e-6
WAITS_BELOW = 0.5  # share of a step in which the core is used
WAITS_A_STEP = 0.5  # times that the core was given away
# What is only a little faster may be so by chance, and a pool costs memory and processes.
GAIN = 1.2
# Its own vector form takes no process more.
OWN_GAIN = 1.05
MOST_THREADS = 256
LONG_S = 5e-4


@dataclass(frozen=True)
class Cost:
    """Seconds of one step of one lane, and whether they are spent waiting for somebody else."""

    step_s: float
    core_s: float
    waits: bool
    spaces: tuple[Space, Space] | None = None  # of observations and actions


@dataclass(frozen=True)
class Choice:
    """World settings that say what is to be made, and why."""

    config: WorldConfig
    reason: str


def nobody() -> None:
    """Listens to signs of life where none are waited for."""


def measure_env(env: gymnasium.Env[Any, Any], tell_alive: Callable[[], None] = nobody) -> Cost:
    """Steps one copy with random actions of those that it allows, resets included."""
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(64)]
    legal = Legal(env.observation_space, env.action_space)
    observed, _ = env.reset(seed=0)
    tell_alive()
    began_s, core_s, waits = time.perf_counter(), time.process_time(), _num_waits()
    steps, took_s = 0, 0.0
    while took_s < STEP_S and not (steps >= LEAST_STEPS and took_s > STEP_S / 2 and took_s / steps > STEP_S / 4):
        observed, _, terminated, truncated, _ = env.step(legal.one(actions[steps % 64], observed))
        if terminated or truncated:
            observed, _ = env.reset()
        steps += 1
        took_s = time.perf_counter() - began_s
    core_s = (time.process_time() - core_s) / steps
    # Other programs on the machine make steps longer too; but who waits gives the core away by himself.
    waits_itself = core_s < WAITS_BELOW * took_s / steps and (_num_waits() - waits) / steps > WAITS_A_STEP
    step_s = took_s / steps if waits_itself else core_s
    return Cost(step_s, core_s, waits_itself, (env.observation_space, env.action_space))


def measure_vector(world: VectorWorld, tell_alive: Callable[[], None] = nobody) -> float:
    """Seconds per row of a vector env."""
    world.action_space.seed(0)
    actions = np.stack([np.asarray(world.action_space.sample()) for _ in range(world.num_lanes)])
    legal = Legal(world.obs_space, world.action_space)
    ready = world.recv()
    tell_alive()
    began_s = time.perf_counter()
    rows, took_s = 0, 0.0
    while took_s < VECTOR_S:  # of which one step may take longer
        world.send(ready.lanes, legal.rows(actions[: len(ready.lanes)], ready.obs))
        ready = world.recv()
        rows += len(ready.lanes)
        took_s = time.perf_counter() - began_s
    return took_s / rows


def _num_waits() -> int:
    """Times that this thread gave its core away."""
    return resource.getrusage(getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)).ru_nvcsw


def choose(
    config: WorldConfig,
    make: Callable[[], gymnasium.Env[Any, Any]],
    vector: Callable[[WorldConfig], VectorWorld] | None,
    hindrance: str,
    cores: int,
    actors: int = 1,
    tell_alive: Callable[[], None] = nobody,
) -> Choice:
    """What `auto` stands for. `make` makes one env, `vector` the env's own vector form with all lanes, and threads if it has some.

    `hindrance` says why workers of a pool cannot make this env, "" if they can. A sign of life is told
    where something that takes long is done: an env was made, or reset. Stepping it takes no longer than one step of a slow one.
    """
    cost, lanes = _try_env(make, tell_alive), config.lanes
    if isinstance(cost, Exception):
        return unmeasured(config, f"{type(cost).__name__}: {cost}", cores)
    inline = _inline(config)
    pool, pool_rate = _pool(config, cost, cores)
    spread = f"{_step(cost)} and {_uses(cost)}: a pool of {_many(pool)} for {lanes} lanes."
    if _wants_pool(config):
        return Choice(pool, spread)
    rate = actors / (cost.step_s + INLINE_S)
    why = (
        "too short to be worth a worker's wake-up" if cores > actors and lanes > 1 else "and nobody is free to share it"
    )
    best = Choice(inline, f"{_step(cost)}, {why}: inline.")
    own = replace(inline, kind="vector", threads=max(1, min(cores // actors, lanes)))
    own_s = None if vector is None else _try_vector(partial(vector, own), cost, tell_alive)
    if own_s is not None and actors / own_s > OWN_GAIN * rate:
        why = f"its own vector form takes {_time(own_s)} a row against {_time(actors / rate)}"
        best, rate = Choice(own, f"{_step(cost)}; {why}: vector."), actors / own_s
    if pool_rate > GAIN * rate:
        if not hindrance:
            best = Choice(pool, spread)
        elif best.config is inline:
            best = Choice(inline, f"{_step(cost)}, which {_many(pool)} could share, but {hindrance}")
    return best


def unmeasured(config: WorldConfig, why: str, cores: int) -> Choice:
    """Of an env of which nothing is known: what was asked for, or inline."""
    pool, _ = _pool(config, Cost(STEP_S, STEP_S, False), cores)
    return Choice(pool if _wants_pool(config) else _inline(config), f"its step could not be measured ({why}).")


def _inline(config: WorldConfig) -> WorldConfig:
    return replace(config, kind="inline", workers=0, threads=0)


def _wants_pool(config: WorldConfig) -> bool:
    return config.kind == "pool" or config.workers > 0 or config.threads > 0


def _pool(config: WorldConfig, cost: Cost, cores: int) -> tuple[WorldConfig, float]:
    """The best pool for these lanes, and the rows a second that it should give."""
    lanes = config.lanes
    if not cost.waits:
        # Two a core where steps are long: one goes on while the other waits for its actions.
        workers = config.workers or min(cores * (2 if cost.step_s > LONG_S else 1), lanes)
        threads = config.threads or 1
        busy = min(workers, cores)
        group = max(1.0, min(lanes / workers, 5e-4 / cost.step_s))
        rate = busy / (cost.step_s + POOL_S + WAKE_S / group)
        return replace(config, kind="pool", workers=workers, threads=threads), rate
    workers = config.workers or min(2 * cores, lanes)
    threads = config.threads or min(math.ceil(lanes / workers), MOST_THREADS)
    at_once = min(lanes, workers * threads)
    rate = min(at_once / (cost.step_s + WAKE_S), cores / (cost.core_s + THREAD_S))
    return replace(config, kind="pool", workers=workers, threads=threads), rate


def _try_env(make: Callable[[], gymnasium.Env[Any, Any]], tell_alive: Callable[[], None]) -> Cost | Exception:
    """Or why not: an env that breaks in a run too is named by the world then, with lane and step."""
    env = make()
    tell_alive()
    try:
        return measure_env(env, tell_alive)
    except Exception as error:
        return error
    finally:
        env.close()


def _try_vector(vector: Callable[[], VectorWorld], one: Cost, tell_alive: Callable[[], None]) -> float | None:
    """None where the vector form does not do, or shows something else than the env: auto then takes another way."""
    try:
        world = vector()
    except FreewheelError:
        return None
    tell_alive()
    try:
        return measure_vector(world, tell_alive) if (world.obs_space, world.action_space) == one.spaces else None
    except FreewheelError:
        return None
    finally:
        world.close()


def num_cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _uses(cost: Cost) -> str:
    return "waits most of it" if cost.waits else "keeps a core busy"


def _many(config: WorldConfig) -> str:
    return f"{config.workers} workers" + (f" with {config.threads} threads each" if config.threads > 1 else "")


def _step(cost: Cost) -> str:
    return f"a step takes {_time(cost.step_s)}"


def _time(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.0f} ns"
