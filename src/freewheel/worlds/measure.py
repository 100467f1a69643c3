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

STEP_S = 0.12  # time to step one copy
VECTOR_S = 0.08  # time to step the env's own vector form
LEAST_STEPS = 3  # of a slow env
WAITS_BELOW = 0.5  # an env waits if a step uses less than this share of the core
WAITS_A_STEP = 0.5  # and gives the core away at least this often per step


def no_listener() -> None:
    """The default `tell_alive`."""


def measure_env(env: gymnasium.Env[Any, Any], tell_alive: Callable[[], None] = no_listener) -> Cost:
    """Steps one copy with random legal actions, resets included."""
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
    # Other programs make steps longer too, but only an env that waits gives the core away by itself.
    waits_itself = core_s < WAITS_BELOW * took_s / steps and (_num_waits() - waits) / steps > WAITS_A_STEP
    step_s = took_s / steps if waits_itself else core_s
    return Cost(step_s, core_s, waits_itself, (env.observation_space, env.action_space))


def measure_vector(world: VectorWorld, tell_alive: Callable[[], None] = no_listener) -> float:
    """Seconds per row of a vector env."""
    world.action_space.seed(0)
    actions = np.stack([np.asarray(world.action_space.sample()) for _ in range(world.num_lanes)])
    legal = Legal(world.obs_space, world.action_space)
    (ready,) = world.recv()
    tell_alive()
    began_s = time.perf_counter()
    rows, took_s = 0, 0.0
    while took_s < VECTOR_S:
        world.send(0, ready.lanes, {"action": legal.rows(actions[: len(ready.lanes)], ready.obs)})
        (ready,) = world.recv()
        rows += len(ready.lanes)
        took_s = time.perf_counter() - began_s
    return took_s / rows


def _num_waits() -> int:
    """How often this thread has given its core away."""
    return resource.getrusage(getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)).ru_nvcsw


def choose(
    config: WorldConfig,
    name: str,
    make: Callable[[], gymnasium.Env[Any, Any]],
    vector: Callable[[WorldConfig], VectorWorld] | None,
    hindrance: str,
    cores: int,
    actors: int = 1,
    tell_alive: Callable[[], None] = no_listener,
) -> Choice[WorldConfig]:
    """Measures for `world_kind.choose`: `make` makes one env, `vector` its own vector env with all lanes.

    `tell_alive` is called after everything that may take long: making and resetting an env.
    """
    cost = _try_env(make, tell_alive)
    if isinstance(cost, Exception):
        return world_kind.unmeasured(config, f"{type(cost).__name__}: {cost}", cores)
    vector_s = None
    if vector is not None and not world_kind.wants_pool(config):
        vector_s = _try_vector(partial(vector, world_kind.vector_of(config, cores, actors)), cost, tell_alive)
    return world_kind.choose(config, name, cost, vector_s, hindrance, cores, actors)


def _try_env(make: Callable[[], gymnasium.Env[Any, Any]], tell_alive: Callable[[], None]) -> Cost | Exception:
    """The cost, or the error: an env that fails in the run too is reported there, with lane and step."""
    env = make()
    tell_alive()
    try:
        return measure_env(env, tell_alive)
    except Exception as error:
        return error
    finally:
        env.close()


def _try_vector(vector: Callable[[], VectorWorld], one: Cost, tell_alive: Callable[[], None]) -> float | None:
    """None if the vector form fails or has other spaces than the env: auto then chooses another world."""
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
