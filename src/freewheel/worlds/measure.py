"""Measures a step of an env and of its own vector env, from which `machine/world_kind.py` chooses the world."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np

from freewheel.config import WorldConfig
from freewheel.errors import FreewheelError
from freewheel.machine import world_kind
from freewheel.machine.trial import Choice
from freewheel.machine.world_kind import Cost
from freewheel.worlds.legal import Legal
from freewheel.worlds.vector import VectorWorld

STEP_S = 0.12  # that one copy is stepped for
VECTOR_S = 0.08  # that the env's own vector form is stepped for
LEAST_STEPS = 3  # of a slow env
WAITS_BELOW = 0.5  # share of a step in which the core is used
WAITS_A_STEP = 0.5  # times that the core was given away


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
    (ready,) = world.recv()
    tell_alive()
    began_s = time.perf_counter()
    rows, took_s = 0, 0.0
    while took_s < VECTOR_S:  # of which one step may take longer
        world.send(0, ready.lanes, {"action": legal.rows(actions[: len(ready.lanes)], ready.obs)})
        (ready,) = world.recv()
        rows += len(ready.lanes)
        took_s = time.perf_counter() - began_s
    return took_s / rows


def _num_waits() -> int:
    """Times that this thread gave its core away."""
    return resource.getrusage(getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)).ru_nvcsw


def choose(
    config: WorldConfig,
    name: str,
    make: Callable[[], gymnasium.Env[Any, Any]],
    vector: Callable[[WorldConfig], VectorWorld] | None,
    hindrance: str,
    cores: int,
    actors: int = 1,
    tell_alive: Callable[[], None] = nobody,
) -> Choice[WorldConfig]:
    """Measures for `world_kind.choose`: `make` makes one env, `vector` its own vector env with all lanes.

    `tell_alive` is called after everything that may take long: an env was made, or reset. Stepping takes no longer than one step.
    """
    cost = _try_env(make, tell_alive)
    if isinstance(cost, Exception):
        return world_kind.unmeasured(config, f"{type(cost).__name__}: {cost}", cores)
    vector_s = None
    if vector is not None and not world_kind.wants_pool(config):
        vector_s = _try_vector(partial(vector, world_kind.vector_of(config, cores, actors)), cost, tell_alive)
    return world_kind.choose(config, name, cost, vector_s, hindrance, cores, actors)


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
