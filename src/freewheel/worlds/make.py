"""From what the user gives to a world: a Gymnasium id, an env, a factory, an import string, or a vector env."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import gymnasium
from gymnasium.envs.registration import EnvSpec

from freewheel.config import WorldConfig
from freewheel.config.check_world import check_kind
from freewheel.config.image import wanted
from freewheel.errors import ConfigError, EnvError, FreewheelError
from freewheel.imports import is_import
from freewheel.machine.cores import num_cores
from freewheel.machine.trial import Choice
from freewheel.worlds import atari
from freewheel.worlds.check import close_all
from freewheel.worlds.envpool_async import AsyncVectorWorld, gives_some_lanes
from freewheel.worlds.find import find_import, find_spec, makes_vector, missing_package, takes
from freewheel.worlds.image import prepare
from freewheel.worlds.inline import InlineWorld
from freewheel.worlds.measure import choose, nobody
from freewheel.worlds.outside import make_outside
from freewheel.worlds.pool import PoolWorld
from freewheel.worlds.pool_member import check_picklable
from freewheel.worlds.puffer import PufferVector, is_puffer
from freewheel.worlds.quick import quicken
from freewheel.worlds.seeds import lane_key
from freewheel.worlds.vector import Vector, VectorWorld
from freewheel.worlds.world import TIMEOUT_S, World

Env = gymnasium.Env[Any, Any]
Factory = Callable[..., Any]
Made = TypeVar("Made")
AnyEnv = str | Env | Vector | Factory


def make_world(
    env: AnyEnv,
    config: WorldConfig,
    seed: int,
    *,
    first_lane: int = 0,
    step_timeout_s: float = TIMEOUT_S,
    restarts: int = 3,
) -> World:
    """The world of `config.lanes` lanes; a vector env that was given as an object keeps the number it has.

    As one part of a run's lanes it has those from `first_lane` on, which is what their episodes' seeds and errors go by.

    Here auto is vector for a vector env and else inline; `choose_world` says which is the fastest. A pool replaces workers after
    `step_timeout_s`, and `restarts` of them. A kind of `module:name` is called with the first arguments as they are here.
    """
    name, kwargs, kind = env_name(env), _kwargs(config), config.kind
    if config.lanes < 1:
        raise ConfigError(f"world.lanes={config.lanes} must be at least 1.")
    check_kind(kind)
    if is_import(kind):
        return make_outside(env, config, seed, first_lane)
    if isinstance(env, gymnasium.vector.VectorEnv):
        own = {"inline": kind == "inline", "pool": kind == "pool"}
        _refuse(name, "is a vector env", **own, kwargs=kwargs, limit=config.max_episode_steps, images=wanted(config))
        return _around(env, seed, name, owns_env=False)
    if isinstance(env, gymnasium.Env):
        return _around_one(env, config, kwargs, seed, name)
    factory = find_import(env) if isinstance(env, str) and is_import(env) else env
    if kind == "vector" or (kind == "auto" and _takes_lanes(factory)):
        # Such an env is seeded as a whole, and those of a run must differ.
        return _make_vector_world(name, factory, config, kwargs, lane_key(seed, first_lane) if first_lane else seed)
    if _takes_lanes(factory):
        raise ConfigError(f"{name} makes a vector env, so world.kind={kind} cannot be. Set it to auto or vector.")
    if kind == "pool":
        limits: dict[str, Any] = {"step_timeout_s": step_timeout_s, "restarts": restarts}
        return _make_pool_world(name, env, config, seed, first_lane, limits)
    return _make_inline_world(name, factory, config, seed, first_lane)


def is_settled(env: AnyEnv, config: WorldConfig) -> bool:
    """Whether settings and env leave no choice of the world."""
    if isinstance(env, (gymnasium.Env, gymnasium.vector.VectorEnv)) or config.kind not in ("auto", "pool"):
        return True
    factory = find_import(env) if isinstance(env, str) and is_import(env) else env
    return _takes_lanes(factory) or bool(config.kind == "pool" and config.workers and config.threads)


def choose_world(
    env: AnyEnv, config: WorldConfig, cores: int = 0, actors: int = 1, tell_alive: Callable[[], None] = nobody
) -> Choice[WorldConfig]:
    """What world.kind=auto stands for on so many cores (0: all), and the numbers of a pool: measured, with the reason.

    Worlds other than a pool would be stepped by so many `actors` side by side.

    Takes a third of a second and the time that an env needs to be made. Settings that leave no choice come back as they are. An
    env that hangs here hangs this process: `worlds/trial.py` has a deadline, and hears the signs of life.
    """
    if is_settled(env, config):
        return Choice(config, "")
    factory: Any = find_import(env) if isinstance(env, str) and is_import(env) else env
    name = env_name(env)
    inline = replace(config, kind="inline", lanes=1)

    def vector(config: WorldConfig) -> VectorWorld:
        return _make_vector_world(name, factory, config, _kwargs(config), 0)

    has_vector = isinstance(factory, str) and find_spec(factory).vector_entry_point is not None
    make = partial(make_env, env, inline, name=name)
    try:
        check_picklable(name, [make])
        hindrance = ""
    except ConfigError as error:
        hindrance = str(error)
    own = vector if has_vector else None
    return choose(config, name, make, own, hindrance, cores or num_cores(), actors, tell_alive)


def _around_one(env: Env, config: WorldConfig, kwargs: dict[str, Any], seed: int, name: str) -> InlineWorld:
    """An env object, which stays open for whoever made it."""
    _refuse(name, "is one env", vector=config.kind == "vector", pool=config.kind == "pool", kwargs=kwargs)
    if config.lanes > 1:
        raise ConfigError(
            f"{name} is one env and can serve one lane, not world.lanes={config.lanes}. "
            "Give a function that makes one, or set world.lanes to 1."
        )
    return InlineWorld([make_env(env, config)], seed, name, owns_envs=False)


def _make_inline_world(name: str, env: str | Factory, config: WorldConfig, seed: int, first_lane: int) -> InlineWorld:
    envs: list[Env] = []
    try:
        for _ in range(config.lanes):
            envs.append(make_env(env, config, name=name))
        return InlineWorld(envs, seed, name, lanes=range(first_lane, first_lane + len(envs)))
    except BaseException:
        close_all(name, envs)
        raise


def _make_pool_world(
    name: str, env: AnyEnv, config: WorldConfig, seed: int, first_lane: int, limits: dict[str, Any]
) -> PoolWorld:
    chosen = config if config.workers and config.threads else choose_world(env, config).chosen
    make = partial(make_env, env, replace(chosen, kind="inline"), name=name)
    return PoolWorld(
        [make] * chosen.lanes,
        seed,
        name,
        chosen.workers,
        first_lane=first_lane,
        threads=chosen.threads,
        min_ready=chosen.min_ready,
        ready_wait_s=chosen.ready_wait_s,
        **limits,
    )


def make_env(env: AnyEnv, config: WorldConfig, render_mode: str | None = None, *, name: str | None = None) -> Env:
    """One plain env, as a lane has it; to evaluate or to watch. An env given as an object is that object."""
    name, kwargs = name or env_name(env), _kwargs(config)
    if isinstance(env, gymnasium.vector.VectorEnv):
        raise ConfigError(
            f"{name} is a vector env; one plain env is needed here. Give its id or a function that makes one."
        )
    if isinstance(env, gymnasium.Env):
        return _limited(prepare(_rendering(env, name, render_mode), config, name), config)
    if isinstance(env, str) and not is_import(env):
        spec = find_spec(env)
        # The world resets before it steps, and checks what comes back for all lanes at once.
        spec.order_enforce = False
        if render_mode is not None:
            kwargs["render_mode"] = render_mode
        if atari.is_atari(spec):
            kwargs = atari.env_kwargs(name, config, kwargs)
        # Where frames are skipped the limit is one of steps, not of frames.
        limit = None if wanted(config) else config.max_episode_steps or None
        made = _called(name, lambda: gymnasium.make(spec, limit, disable_env_checker=True, **kwargs), spec)
        quicken(made)
        if atari.is_atari(spec):
            atari.tell_rate(made, config)
        return _limited(_prepared(made, config, name), config) if limit is None else made
    factory = find_import(env) if isinstance(env, str) else env
    if makes_vector(factory):
        raise ConfigError(f"{name} makes a vector env; one plain env is needed here. Give a function that makes one.")
    if render_mode is not None and takes(factory, "render_mode"):
        kwargs["render_mode"] = render_mode
    made = _called(name, lambda: factory(**kwargs))
    if not isinstance(made, gymnasium.Env):
        raise ConfigError(
            f"{name} made {type(made).__name__}, which is not a gymnasium.Env. "
            "Let it return one; envs of the older gym package are converted by shimmy."
        )
    return _limited(_prepared(_rendering(made, name, render_mode), config, name), config)


def env_name(env: AnyEnv) -> str:
    """What an env is called in messages, logs and run folders."""
    if isinstance(env, str):
        return env
    if isinstance(env, (gymnasium.Env, gymnasium.vector.VectorEnv)):
        named = getattr(env.spec, "id", None)  # EnvPool's spec has none
        return str(named or type(env.unwrapped).__name__)
    if not callable(env):
        raise ConfigError(
            f"{env!r} ({type(env).__name__}) is no env. Give a Gymnasium id, an env, a function that makes one, "
            "or the name of such a function as module:function."
        )
    return str(getattr(env, "__qualname__", type(env).__name__))


def _make_vector_world(
    name: str, env: str | Factory, config: WorldConfig, kwargs: dict[str, Any], seed: int
) -> VectorWorld:
    made = _make_vector(name, env, config, kwargs)
    try:
        if made.num_envs != config.lanes:
            raise ConfigError(
                f"{name} made {made.num_envs} envs, not world.lanes={config.lanes}. Let it take num_envs."
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
            f"{name} gives some of its lanes at a time, and {type(env).__name__} around it wraps steps of all of them. "
            "Leave the wrapper out, or make it without batch_size."
        )
    return AsyncVectorWorld(env, seed, name, owns_env=owns_env)


def _make_vector(name: str, env: str | Factory, config: WorldConfig, kwargs: dict[str, Any]) -> Vector:
    if isinstance(env, str):
        spec = find_spec(env)
        if spec.vector_entry_point is None:
            raise ConfigError(
                f"{name} has no vector env of its own. Set world.kind to inline for copies in one process."
            )
        if atari.is_atari(spec):
            return _called(name, lambda: atari.make_vector(name, spec, config, kwargs), spec)
        _refuse(name, "is made in its own vector form", images=wanted(config))
        if config.max_episode_steps:
            kwargs["max_episode_steps"] = config.max_episode_steps
        mode = gymnasium.VectorizeMode.VECTOR_ENTRY_POINT
        vector = _called(name, lambda: gymnasium.make_vec(spec, config.lanes, mode, **kwargs), spec)
        quicken(vector)
        return vector
    _refuse(name, "makes its own vector env", limit=config.max_episode_steps, images=wanted(config))
    if makes_vector(env):
        kwargs["num_envs"] = config.lanes
    made = _called(name, lambda: env(**kwargs))
    if is_puffer(made):
        return PufferVector(made)
    if not isinstance(made, gymnasium.vector.VectorEnv):
        raise ConfigError(
            f"{name} made {type(made).__name__}, and world.kind=vector needs a gymnasium.vector.VectorEnv (or an env of PufferLib). "
            "Let it take num_envs and return one, or set world.kind to inline."
        )
    return made


def _takes_lanes(env: str | Factory) -> bool:
    """Whether it makes a vector env and nothing else."""
    if not isinstance(env, str):
        return makes_vector(env)
    spec = find_spec(env)
    return spec.entry_point is None and spec.vector_entry_point is not None


def _called(name: str, make: Callable[[], Made], spec: EnvSpec | None = None) -> Made:
    """What `make` makes; its failure is the env's, unless a package is missing."""
    try:
        return make()
    except FreewheelError:
        raise
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
        raise ConfigError(missing_package(name, error, spec)) from error
    except Exception as error:
        raise EnvError(
            f"{name} raised {type(error).__name__} while it was made: {error}. Check its arguments in world.kwargs."
        ) from error


def _kwargs(config: WorldConfig) -> dict[str, Any]:
    try:
        given = json.loads(config.kwargs)
    except json.JSONDecodeError as error:
        raise ConfigError(f"world.kwargs={config.kwargs!r} is not JSON: {error}.") from error
    if not isinstance(given, dict):
        raise ConfigError(f'world.kwargs={config.kwargs!r} must be a JSON object such as {{"gravity": 9.8}}.')
    return given


def _refuse(name: str, what: str, **unusable: Any) -> None:
    """Settings that this env would have to ignore."""
    flags = {
        "inline": "world.kind=inline",
        "pool": "world.kind=pool",
        "vector": "world.kind=vector",
        "kwargs": "world.kwargs",
        "limit": "world.max_episode_steps",
        "images": " and ".join(f"world.{setting}" for setting in unusable.get("images") or ()),
    }
    found = [flags[key] for key, value in unusable.items() if value]
    if found:
        raise ConfigError(
            f"{name} {what}, so {' and '.join(found)} cannot be used. Leave it out, or give the env's id."
        )


def _rendering(env: Env, name: str, render_mode: str | None) -> Env:
    if render_mode is not None and env.render_mode != render_mode:
        raise ConfigError(
            f"{name} has render_mode={env.render_mode!r}, and {render_mode!r} is needed to show it. "
            "Let the function that makes it take render_mode."
        )
    return env


def _prepared(env: Env, config: WorldConfig, name: str) -> Env:
    """Closed again if its pictures cannot be what the settings say."""
    try:
        return prepare(env, config, name)
    except BaseException:
        close_all(name, [env])
        raise


def _limited(env: Env, config: WorldConfig) -> Env:
    return gymnasium.wrappers.TimeLimit(env, config.max_episode_steps) if config.max_episode_steps else env
