"""Looks at an env in a throwaway process: its spaces, and what it and its own vector env cost, from which `machine/world_kind.py`
chooses the world.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import gymnasium

from freewheel.config import WorldConfig
from freewheel.errors import Breach, ConfigError, FreewheelError
from freewheel.machine import world_kind
from freewheel.machine.cores import num_cores
from freewheel.machine.trial import Choice, throwaway
from freewheel.spec import RowSpec, describe, read_space
from freewheel.worlds.find import find_factory
from freewheel.worlds.info_mask import mask_of, num_masked
from freewheel.worlds.make import AnyEnv, Env, env_name, make_env, make_world, makes_only_vector
from freewheel.worlds.measure import measure_vector, no_listener, try_env
from freewheel.worlds.pool import START_S
from freewheel.worlds.pool_member import why_not_pooled
from freewheel.worlds.world import Group, OneGroup, World, sole_group

DECIDED = ("kind", "workers", "threads")  # the settings that a measurement decides


def is_settled(env: AnyEnv, config: WorldConfig) -> bool:
    """Whether settings and env leave no choice of the world."""
    if isinstance(env, (gymnasium.Env, gymnasium.vector.VectorEnv)) or config.kind not in ("auto", "pool"):
        return True
    has_numbers = config.kind == "pool" and config.workers and config.threads
    return makes_only_vector(find_factory(env)) or bool(has_numbers)


def make_looking(env: AnyEnv, config: WorldConfig, seed: int, looks: bool = True) -> tuple[World, WorldConfig]:
    """The world, and its settings. If its first reset gives info["action_mask"], world.info_mask=auto becomes on."""
    world = make_world(env, config, seed)
    given = world.first_mask() if looks and config.info_mask == "auto" and isinstance(world, OneGroup) else None
    if given is None:
        return world, config
    world.close()
    (group,) = world.groups
    try:
        mask_of(given, num_masked(world.name, group.obs_space, group.action_space))
    except Breach as breach:
        raise ConfigError(f"{world.name} {breach}") from breach
    config = replace(config, info_mask="on")
    return make_world(env, config, seed), config


def choose_world(
    env: AnyEnv, config: WorldConfig, cores: int = 0, actors: int = 1, tell_alive: Callable[[], None] = no_listener
) -> Choice[WorldConfig]:
    """Measures what world.kind=auto stands for on this number of cores (0: all), and how many workers a pool needs.

    Worlds other than a pool would be stepped by `actors` processes. It takes a third of a second and the time to make an env.
    Settings that leave no choice are returned unchanged. An env that hangs here hangs this process: `choose_apart` has a deadline
    and listens to `tell_alive`, which is called after everything that may take long: making and resetting an env.
    """
    if is_settled(env, config):
        return Choice(config)
    name, cores = env_name(env), cores or num_cores()
    make = partial(make_env, env, replace(config, kind="inline", lanes=1), name=name)
    one = make()
    tell_alive()
    cost = try_env(one, tell_alive)
    if isinstance(cost, BaseException):
        return world_kind.unmeasured(config, f"{type(cost).__name__}: {cost}", cores)
    vector_s = None
    if not world_kind.wants_pool(config) and isinstance(find_factory(env), str):
        vector_s = _try_vector(env, world_kind.vector_of(config, cores, actors), one, tell_alive)
    return world_kind.choose(config, name, cost, vector_s, why_not_pooled(name, [make]), cores, actors)


def choose_apart(env: AnyEnv, config: WorldConfig, actors: int, step_timeout_s: float) -> Choice[WorldConfig]:
    """`choose_world` in a throwaway process. An env that hangs, crashes or raises is stepped inline, where the run reports the error."""
    if is_settled(env, config):
        return Choice(config)
    # Making an env may start other programs.
    work = (_choose, env, config, num_cores(), actors)
    report = throwaway(*work, timeout_s=step_timeout_s, start_timeout_s=START_S, needs=(env,))
    if not report.told:
        return world_kind.unmeasured(config, report.failure, num_cores())
    decided, reason = report.told[0]
    return Choice(replace(config, **decided), reason)


def groups_apart(env: AnyEnv, config: WorldConfig, seed: int, looks: bool = True) -> tuple[list[Group], WorldConfig]:
    """The groups and settings of the world of `make_looking`, made in a throwaway process. Raises what it raises there; an env that hangs
    or crashes is an EnvError.
    """
    report = throwaway(_groups, env, config, seed, looks, timeout_s=START_S, needs=(env,))
    if report.failure:
        raise report.error(env_name(env), "while it was made to see its spaces")
    groups, info_mask = report.told[0]
    found = [Group(name, read_space(obs), read_space(action), num_lanes) for name, obs, action, num_lanes in groups]
    return found, replace(config, info_mask=info_mask)


def _groups(env: AnyEnv, config: WorldConfig, seed: int, looks: bool, tell: Callable[..., None]) -> None:
    world, found = make_looking(env, config, seed, looks)
    for group in world.groups:
        RowSpec.of(group.obs_space, group.action_space)  # refuses spaces that rows cannot hold
    groups = [(one.name, describe(one.obs_space), describe(one.action_space), one.num_lanes) for one in world.groups]
    world.close()
    tell([groups, found.info_mask])


def _choose(env: AnyEnv, config: WorldConfig, cores: int, actors: int, tell: Callable[..., None]) -> None:
    choice = choose_world(env, config, cores, actors, tell)
    tell([{name: getattr(choice.chosen, name) for name in DECIDED}, choice.reason])


def _try_vector(env: AnyEnv, config: WorldConfig, one: Env, tell_alive: Callable[[], None]) -> float | None:
    """None if the env has no vector form, or one that fails or has other spaces: auto then chooses another world."""
    try:
        world = make_world(env, config, seed=0)
    except FreewheelError:
        return None
    tell_alive()
    try:
        group = sole_group(world)
        is_same = (group.obs_space, group.action_space) == (one.observation_space, one.action_space)
        return measure_vector(world, tell_alive) if is_same else None
    except FreewheelError:
        return None
    finally:
        world.close()
