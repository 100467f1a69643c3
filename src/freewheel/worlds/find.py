"""Finds an env by name: in Gymnasium's registry, or a function in a module. Errors suggest similar names."""

from __future__ import annotations

import copy
import difflib
import importlib
import importlib.util
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from freewheel.errors import RAISED, ConfigError, EnvError, FreewheelError, quoted
from freewheel.imports import find_module, find_name, is_import


def find_spec(name: str) -> EnvSpec:
    """A copy of the spec that is registered under this id."""
    module, colon, env_id = name.rpartition(":")
    if colon:
        find_module(module)
    if env_id not in gymnasium.registry:
        _register(env_id)
    if env_id not in gymnasium.registry:
        raise ConfigError(f"there is no env {name!r}. {_near_ids(env_id)}")
    return copy.deepcopy(gymnasium.registry[env_id])


def _register(env_id: str) -> None:
    """Registers the ids of packages that Gymnasium does not load by itself."""
    if env_id.startswith("freewheel/"):
        importlib.import_module("freewheel.worlds.catch")
    elif env_id.startswith("SuperMarioBros"):
        importlib.import_module("freewheel.worlds.mario").register(env_id)
    elif importlib.util.find_spec("ale_py") is not None:
        games: Any = importlib.import_module("ale_py")
        games.ALEInterface.setLoggerMode(games.LoggerMode.Error)  # else it prints a banner to stderr
    elif env_id.startswith("ALE/") or re.search(r"NoFrameskip-v\d$", env_id):
        raise ConfigError(f"{env_id} needs ale-py, which is not installed. pip install 'freewheel[atari]'")


def find_import(name: str, what: str = "an env") -> Callable[..., Any]:
    found = find_name(name, f"Name a function that returns {what}.")
    if not callable(found):
        raise ConfigError(f"{name} is {type(found).__name__}, not a function or class. Name one that returns {what}.")
    made: Callable[..., Any] = found
    return made


def find_factory(env: Any) -> Any:
    """The function that `module:name` names; everything else as it is: an id, a function, an env."""
    return find_import(env) if isinstance(env, str) and is_import(env) else env


@contextmanager
def named_errors(
    name: str,
    when: str = "while it was made",
    spec: EnvSpec | None = None,
    cure: str = "Check its arguments in world.kwargs.",
) -> Iterator[None]:
    """Names the env in what it raises. An error is the env's own, unless a package is missing."""
    try:
        yield
    except FreewheelError:
        raise
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
        raise ConfigError(_missing_package(name, error, spec)) from error
    except RAISED as error:
        raise EnvError(f"{name} raised {type(error).__name__} {when}: {quoted(error)}. {cure}") from error


def _missing_package(name: str, error: Exception, spec: EnvSpec | None) -> str:
    """The error message for an env that needs a package."""
    group = re.match(r"gymnasium\.envs\.(\w+)", str(spec.entry_point)) if spec is not None else None
    if group is None:
        cure = "Install the package it names."
    else:
        extra = group[1].replace("_", "-")
        cure = f"Try pip install '{'freewheel' if extra == 'box2d' else 'gymnasium'}[{extra}]'."
    return f"{name} needs a package that is not installed: {str(error).rstrip('.')}. {cure}"


def _near_ids(env_id: str) -> str:
    by_version = sorted(gymnasium.registry, key=lambda known: gymnasium.registry[known].version or 0)
    newest, stem = {_stem(known): known for known in by_version}, _stem(env_id)
    near = [stem] if stem in newest else difflib.get_close_matches(stem, newest, 3, 0.6)
    if near:
        return f"Did you mean {' or '.join(newest[close] for close in near)}?"
    return (
        "gymnasium.pprint_registry() lists the known ids. Write package:id for an id of another package, such as "
        "minigrid:MiniGrid-Empty-8x8-v0, and module:function for your own function."
    )


def _stem(env_id: str) -> str:
    return re.sub(r"-v\d+$", "", env_id).lower()


def makes_vector(factory: Callable[..., Any]) -> bool:
    if inspect.isclass(factory) and issubclass(factory, (gymnasium.Env, gymnasium.vector.VectorEnv)):
        return issubclass(factory, gymnasium.vector.VectorEnv)
    return takes(factory, "num_envs")


def takes(factory: Callable[..., Any], argument: str) -> bool:
    try:
        return argument in inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return False  # a builtin without a signature
