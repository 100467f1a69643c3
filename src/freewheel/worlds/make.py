"""From what the user gives to a world: a Gymnasium id, an env, a factory, an import string, or a vector env."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium

from freewheel.config import WorldConfig, wanted
from freewheel.config.check import check_kind, read_kwargs
from freewheel.errors import ConfigError
from freewheel.imports import is_import
from freewheel.machine.cores import num_cores
from freewheel.machine.world_kind import UNMEASURED, pool_of
from freewheel.worlds import atari
from freewheel.worlds.check import close_all
from freewheel.worlds.envpool_async import AsyncVectorWorld, gives_some_lanes
from freewheel.worlds.find import find_factory, find_import, find_spec, makes_vector, named_errors, takes
from freewheel.worlds.image import prepare
from freewheel.worlds.inline import InlineWorld
from freewheel.worlds.measure import no_listener, try_env
from freewheel.worlds.pool import START_S, PoolWorld
from freewheel.worlds.puffer import PufferVector, is_puffer
from freewheel.worlds.quick import quicken
from freewheel.worlds.seeds import lane_key
from freewheel.worlds.vector import Vector, VectorWorld
from freewheel.worlds.world import TIMEOUT_S, World

Env = gymnasium.Env[Any, Any]
Factory = Callable[..., Any]
AnyEnv = str | Env | Vector | Factory
# What a world from outside must have: see World.
MEMBERS = ("name", "may_rest", "groups", "recv", "send", "close", "state", "set_state")


def make_world(
    env: AnyEnv,
    config: WorldConfig,
    seed: int,
    *,
    first_lane: int = 0,
    step_timeout_s: float = TIMEOUT_S,
    restarts: int = 3,
    alive: Callable[..., None] = no_listener,
) -> World:
    """The world of `config.lanes` lanes; a vector env given as an object keeps its own number.

    In the run its lanes are numbered from `first_lane` on: the seeds of their episodes and errors use these numbers. `alive` is
    called after each step and reset of an inline env, and before each is made, with the seconds that this may take.

    Here auto is vector for a vector env and inline for all others; worlds/choose.py finds the fastest. A pool replaces a worker after
    `step_timeout_s`, up to `restarts` times. A kind of `module:name` is called with (env, config, seed, first_lane=...).
    """
    name, kwargs, kind = env_name(env), read_kwargs(config), config.kind
    if config.lanes < 1:
        raise ConfigError(f"world.lanes={config.lanes} must be at least 1.")
    check_kind(kind)
    if is_import(kind):
        return _make_outside(env, config, seed, first_lane)
    if isinstance(env, gymnasium.vector.VectorEnv):
        own = {f"world.kind={kind}": kind in ("inline", "pool"), "world.kwargs": kwargs}
        _refuse(name, "is a vector env", {**own, **_steps_and_images(config)})
        return _around(env, seed, name, owns_env=False)
    if isinstance(env, gymnasium.Env):
        return _around_one(env, config, kwargs, seed, name)
    factory = find_factory(env)
    if kind == "vector" or (kind == "auto" and makes_only_vector(factory)):
        # A vector env is seeded as a whole, and the actors of one run need different seeds.
        return _make_vector_world(name, factory, config, lane_key(seed, first_lane) if first_lane else seed)
    if makes_only_vector(factory):
        raise ConfigError(f"{name} makes a vector env, which world.kind={kind} cannot step. Set it to auto or vector.")
    if kind == "pool":
        return _make_pool_world(name, env, config, seed, first_lane, step_timeout_s=step_timeout_s, restarts=restarts)
    return _make_inline_world(name, factory, config, seed, first_lane, alive)


def _make_outside(env: AnyEnv, config: WorldConfig, seed: int, first_lane: int) -> World:
    """The world that `module:name` makes of `env`, which can be anything."""
    who = f"world.kind={config.kind}"
    make = find_import(config.kind, "a world")
    with named_errors(who, cure="It is called with (env, config, seed, first_lane=...)."):
        world: World = make(env, config, seed, first_lane=first_lane)
    if missing := [member for member in MEMBERS if not hasattr(world, member)]:
        raise ConfigError(
            f"{who} made {type(world).__name__}, which has no {', '.join(missing)}. "
            "The class World in freewheel/worlds/world.py lists what a world has."
        )
    # Replay and actors count the lanes of a sole group by the settings.
    if len(world.groups) == 1 and world.groups[0].num_lanes != config.lanes:
        world.close()
        raise ConfigError(
            f"{who} made {world.groups[0].num_lanes} lanes, not world.lanes={config.lanes}. Make config.lanes of them."
        )
    return world


def _around_one(env: Env, config: WorldConfig, kwargs: dict[str, Any], seed: int, name: str) -> InlineWorld:
    """An env object; its owner closes it."""
    own = {f"world.kind={config.kind}": config.kind in ("vector", "pool"), "world.kwargs": kwargs}
    _refuse(name, "is one env", own)
    if config.lanes > 1:
        raise ConfigError(
            f"{name} is one env and can serve one lane, not world.lanes={config.lanes}. "
            "Give a function that makes one, or set world.lanes to 1."
        )
    return InlineWorld([make_env(env, config)], seed, name, owns_envs=False)


def _make_inline_world(
    name: str, env: str | Factory, config: WorldConfig, seed: int, first_lane: int, alive: Callable[..., None]
) -> InlineWorld:
    envs: list[Env] = []
    try:
        for _ in range(config.lanes):
            alive(limit_s=START_S)
            envs.append(make_env(env, config, name=name))
            if alive is not no_listener:
                _watch(envs[-1], alive)
        return InlineWorld(envs, seed, name, lanes=range(first_lane, first_lane + len(envs)))
    except BaseException:
        close_all(name, envs)
        raise


def _watch(env: Env, alive: Callable[..., None]) -> None:
    def then_alive(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            result = method(*given, **named)
            alive()
            return result

        return call

    for name in ("step", "reset"):
        setattr(env, name, then_alive(getattr(env, name)))


def _make_pool_world(
    name: str, env: AnyEnv, config: WorldConfig, seed: int, first_lane: int, **limits: Any
) -> PoolWorld:
    make = partial(make_env, env, replace(config, kind="inline"), name=name)
    if not (config.workers and config.threads):
        cost = try_env(make())
        config, _ = pool_of(config, UNMEASURED if isinstance(cost, Exception) else cost, num_cores())
    return PoolWorld(
        [make] * config.lanes,
        seed,
        name,
        config.workers,
        first_lane=first_lane,
        threads=config.threads,
        min_ready=config.min_ready,
        ready_wait_s=config.ready_wait_s,
        **limits,
    )


def make_env(env: AnyEnv, config: WorldConfig, render_mode: str | None = None, *, name: str | None = None) -> Env:
    """One plain env, as a lane has it; also to evaluate or to watch. An env given as an object is that object."""
    name, factory = name or env_name(env), find_factory(env)
    limit = config.max_episode_steps
    if isinstance(factory, gymnasium.Env):
        made = factory
    elif isinstance(factory, str):
        # Where frames are skipped the limit counts steps, not frames.
        given = limit if not wanted(config) else 0
        made, limit = _make_registered(factory, config, render_mode, name, given or None), limit - given
    else:
        made = _call_factory(factory, config, render_mode, name)
    try:
        if render_mode is not None and made.render_mode != render_mode and not isinstance(factory, str):
            raise ConfigError(
                f"{name} has render_mode={made.render_mode!r}, and {render_mode!r} is needed to show it. "
                "Add a parameter render_mode to the function that makes it."
            )
        prepared = prepare(made, config, name)
        return gymnasium.wrappers.TimeLimit(prepared, limit) if limit else prepared
    except BaseException:
        if made is not env:
            close_all(name, [made])
        raise


def _make_registered(env_id: str, config: WorldConfig, render_mode: str | None, name: str, limit: int | None) -> Env:
    kwargs, spec = read_kwargs(config), find_spec(env_id)
    # The world resets before it steps, and checks the results of all lanes at once.
    spec.order_enforce = False
    if render_mode is not None:
        kwargs["render_mode"] = render_mode
    if atari.is_atari(spec):
        kwargs = atari.env_kwargs(name, config, kwargs)
    with named_errors(name, spec=spec):
        made = gymnasium.make(spec, limit, disable_env_checker=True, **kwargs)
    quicken(made)
    if atari.is_atari(spec):
        atari.set_frame_rate(made, config)
    return made


def _call_factory(factory: Factory, config: WorldConfig, render_mode: str | None, name: str) -> Env:
    kwargs = read_kwargs(config)
    if isinstance(factory, gymnasium.vector.VectorEnv) or makes_vector(factory):
        raise ConfigError(
            f"{name} is a vector env, and one plain env is needed here. Give the id of an env, or a function that makes one."
        )
    if render_mode is not None and takes(factory, "render_mode"):
        kwargs["render_mode"] = render_mode
    with named_errors(name):
        made = factory(**kwargs)
    if not isinstance(made, gymnasium.Env):
        raise ConfigError(
            f"{name} made {type(made).__name__}, which is not a gymnasium.Env. "
            "Return one; the package shimmy converts envs of the older gym package."
        )
    return made


def env_name(env: AnyEnv) -> str:
    """The name of an env in messages, logs and run folders."""
    if isinstance(env, str):
        return env
    if isinstance(env, (gymnasium.Env, gymnasium.vector.VectorEnv)):
        named = getattr(env.spec, "id", None)  # EnvPool's spec has none
        return str(named or type(env.unwrapped).__name__)
    if not callable(env):
        raise ConfigError(
            f"{env!r} ({type(env).__name__}) is not an env. Give a Gymnasium id, an env, a function that makes one, "
            "or the name of such a function as module:function."
        )
    return str(getattr(env, "__qualname__", type(env).__name__))


def _make_vector_world(name: str, env: str | Factory, config: WorldConfig, seed: int) -> VectorWorld:
    made = _make_vector(name, env, config)
    try:
        if made.num_envs != config.lanes:
            raise ConfigError(
                f"{name} made {made.num_envs} envs, not world.lanes={config.lanes}. Add a parameter num_envs to it."
            )
        return _around(made, seed, name)
    except BaseException:
        close_all(name, [made])
        raise


def _around(env: Vector, seed: int, name: str, owns_env: bool = True) -> VectorWorld:
    if not gives_some_lanes(env.unwrapped):
        return VectorWorld(env, seed, name, owns_env=owns_env)
    if env is not env.unwrapped:
        raise ConfigError(
            f"{name} gives some of its lanes at a time, and {type(env).__name__} around it expects a step of all lanes. "
            "Remove the wrapper, or make the env without batch_size."
        )
    return AsyncVectorWorld(env, seed, name, owns_env=owns_env)


def _make_vector(name: str, env: str | Factory, config: WorldConfig) -> Vector:
    kwargs = read_kwargs(config)
    if isinstance(env, str):
        spec = find_spec(env)
        if spec.vector_entry_point is None:
            raise ConfigError(
                f"{name} has no vector env of its own. Set world.kind to inline for copies in one process."
            )
        if atari.is_atari(spec):
            with named_errors(name, spec=spec):
                return atari.make_vector(name, spec, config, kwargs)
        _refuse(name, "is made in its own vector form", _steps_and_images(replace(config, max_episode_steps=0)))
        if config.max_episode_steps:
            kwargs["max_episode_steps"] = config.max_episode_steps
        mode = gymnasium.VectorizeMode.VECTOR_ENTRY_POINT
        with named_errors(name, spec=spec):
            vector = gymnasium.make_vec(spec, config.lanes, mode, **kwargs)
        quicken(vector)
        return vector
    _refuse(name, "makes its own vector env", _steps_and_images(config))
    if makes_vector(env):
        kwargs["num_envs"] = config.lanes
    with named_errors(name):
        made = env(**kwargs)
    if is_puffer(made):
        return PufferVector(made)
    if not isinstance(made, gymnasium.vector.VectorEnv):
        raise ConfigError(
            f"{name} made {type(made).__name__}, and world.kind=vector needs a gymnasium.vector.VectorEnv (or an env of PufferLib). "
            "Add a parameter num_envs and return one, or set world.kind to inline."
        )
    return made


def makes_only_vector(env: str | Factory) -> bool:
    if not isinstance(env, str):
        return makes_vector(env)
    spec = find_spec(env)
    return spec.entry_point is None and spec.vector_entry_point is not None


def _steps_and_images(config: WorldConfig) -> dict[str, Any]:
    images = {f"world.{setting}": True for setting in wanted(config)}
    return {"world.max_episode_steps": config.max_episode_steps, **images}


def _refuse(name: str, what: str, settings: Mapping[str, Any]) -> None:
    """Settings that have a value and that this env would ignore."""
    if found := [setting for setting, value in settings.items() if value]:
        raise ConfigError(
            f"{name} {what}, so {' and '.join(found)} cannot be used. Leave it out, or give the env's id."
        )
