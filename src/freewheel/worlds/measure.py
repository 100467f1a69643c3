"""Steps envs and worlds with random actions, and measures what a step costs."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from freewheel.machine.world_kind import Cost
from freewheel.worlds.legal import RandomActions
from freewheel.worlds.world import Array, World, recv_sole, sole_group

STEP_S = 0.12  # time to step one copy
VECTOR_S = 0.08  # time to step the env's own vector form
LEAST_STEPS = 3  # of a slow env
WAITS_BELOW = 0.5  # an env waits if a step uses less than this share of the core
WAITS_A_STEP = 0.5  # and gives the core away at least this often per step


def no_listener(limit_s: float = 0.0) -> None:
    """The default of who is told that an env is alive."""


class Driver:
    """Steps a world with random actions; with `by_mask` the env's mask limits them."""

    def __init__(self, world: World, by_mask: bool = True) -> None:
        self.world, self.group = world, sole_group(world)
        self.steps = self.episodes = 0
        spaces = (self.group.obs_space, self.group.action_space)
        self._actions = RandomActions(*spaces, by_mask, self.group.num_lanes)
        self._ready = recv_sole(world)

    def step(self) -> None:
        lanes = self._ready.lanes
        self.world.send(0, lanes, self._actions.rows(self.steps, len(lanes), self._ready.obs))
        self._ready = recv_sole(self.world)
        self.steps += len(lanes)
        self.episodes += 0 if self._ready.ended is None else len(self._ready.ended.lanes)


def usage() -> Array:
    """Time, CPU time, and how often this thread has given its core away."""
    given = resource.getrusage(getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)).ru_nvcsw
    return np.array([time.perf_counter(), time.process_time(), given])


def since(before: Array, steps: int) -> tuple[float, float, bool]:
    """Time and CPU time of a step since this `usage`, and whether the env spends it waiting for something else.

    Other programs make steps longer too, but only an env that waits gives the core away by itself.
    """
    step_s, core_s, given = ((usage() - before) / steps).tolist()
    return step_s, core_s, core_s < WAITS_BELOW * step_s and given > WAITS_A_STEP


def measure_env(env: gymnasium.Env[Any, Any], tell_alive: Callable[[], None] = no_listener) -> Cost:
    """Steps one copy with random legal actions, resets included."""
    actions = RandomActions(env.observation_space, env.action_space)
    observed, _ = env.reset(seed=0)
    tell_alive()
    before, began_s = usage(), time.perf_counter()
    steps, took_s = 0, 0.0
    while took_s < STEP_S and not (steps >= LEAST_STEPS and took_s > STEP_S / 2 and took_s / steps > STEP_S / 4):
        observed, _, terminated, truncated, _ = env.step(actions.one(steps, observed))
        if terminated or truncated:
            observed, _ = env.reset()
        steps += 1
        took_s = time.perf_counter() - began_s
    step_s, core_s, waits = since(before, steps)
    return Cost(step_s if waits else core_s, core_s, waits)


def measure_vector(world: World, tell_alive: Callable[[], None] = no_listener) -> float:
    """Seconds per row of a vector env."""
    driver = Driver(world)
    tell_alive()
    began_s, took_s = time.perf_counter(), 0.0
    while took_s < VECTOR_S:
        driver.step()
        took_s = time.perf_counter() - began_s
    return took_s / driver.steps


def try_env(env: gymnasium.Env[Any, Any], tell_alive: Callable[[], None] = no_listener) -> Cost | Exception:
    """The cost, or the error: an env that fails in the run too is reported there, with lane and step. Closes the env."""
    try:
        return measure_env(env, tell_alive)
    except Exception as error:
        return error
    finally:
        env.close()
