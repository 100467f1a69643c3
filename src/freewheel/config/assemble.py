"""Layers of settings, lowest first: defaults, what the algorithm's name means, the preset, what was given."""

from __future__ import annotations

import dataclasses
import difflib
import re
import sys
import types
import typing
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from freewheel.config.check import check, refuse_unused
from freewheel.config.parts import Algo, Config
from freewheel.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

PRESETS = Path(__file__).parent / "presets"
# The section of a preset that holds for every algorithm.
ALL = "all"

PPO = {
    "net.hidden": (64, 64),
    "net.activation": "tanh",
    "net.init": "orthogonal",
    "learner.lr": 3e-4,
    "learner.adam_eps": 1e-5,
    "learner.clip_norm": 0.5,
}
# A named combination is nothing but settings.
MEANINGS: dict[str, dict[str, Any]] = {
    "rainbow": {"q.double": True, "q.dueling": True, "q.noisy": True, "q.n_step": 3, "replay.prioritized": True},
    "ppo": PPO,
    # One rollout is collected while another is learned from: more would only be older.
    "appo": {**PPO, "rollout.max_lag": 1},
}
# What a body is usually made of, where it is asked for by name.
BODIES: dict[str, dict[str, Any]] = {"impala": {"net.channels": (16, 32, 32), "net.hidden": (256,)}}
# Presets for a whole family of envs, used where an env has none of its own.
FAMILIES = {
    r"(ale_py:)?(ALE/.+|\w+NoFrameskip-v\d)": "Atari",
    r"SuperMarioBros.*|freewheel\.worlds\.mario:make": "Mario",
}
# Sections of a preset that hold for an algorithm beside its own.
LIKE = {"appo": ("ppo",)}


def assemble(env: str, given: Mapping[str, Any], preset: str = "auto") -> Config:
    """The settings of a run. `given` has dotted names ("learner.lr") and goes before the preset; all is checked."""
    layers = read_layers(env, given, preset)
    config = _built({"env": env, **layers})
    check(config)
    refuse_unused(config, given)
    return config


def read_layers(env: str, given: Mapping[str, Any], preset: str) -> dict[str, Any]:
    """All that differs from the defaults, by dotted name; types and names are checked, values are not."""
    given = _typed(given, "")
    algo = str(given.get("algo", "dqn"))
    if algo not in typing.get_args(Algo):
        raise ConfigError(f"algo={algo!r} is not known{nearest(algo, typing.get_args(Algo))}")
    body = BODIES.get(str(given.get("net.body")), {})
    return {**MEANINGS.get(algo, {}), **read_preset(env, algo, preset), **body, **given, "algo": algo}


def read_preset(env: str, algo: str, preset: str) -> dict[str, Any]:
    """The settings of a preset for an algorithm; of several with commas between them the later ones go before.

    `auto` looks for the env's own or its family's, `none` gives none, else it is a name or a TOML file.
    """
    merged: dict[str, Any] = {}
    for name in preset.split(","):
        if (path := _find_preset(env, name.strip())) is not None:
            merged |= _read_file(path, algo)
    return merged


def _find_preset(env: str, name: str) -> Path | None:
    if name == "none":
        return None
    if name == "auto":
        family = (preset for pattern, preset in FAMILIES.items() if re.fullmatch(pattern, env))
        found = (PRESETS / f"{own}.toml" for own in (env, *family))
        return next((path for path in found if path.is_file()), None)
    if name.endswith(".toml"):
        path = Path(name)
    else:
        written = {known.lower(): known for known in presets()}
        path = PRESETS / f"{written.get(name.lower(), name)}.toml"
    if not path.is_file():
        raise ConfigError(f"preset {name!r} is neither a TOML file nor the name of a preset{nearest(name, presets())}")
    return path


def _read_file(path: Path, algo: str) -> dict[str, Any]:
    try:
        sections = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"preset {path} cannot be read: {error}.") from error
    for name in sections:
        if name not in (ALL, *typing.get_args(Algo)):
            raise ConfigError(
                f"preset {path} has a section [{name}]; sections are {ALL} and the algorithms"
                f"{nearest(name, (ALL, *typing.get_args(Algo)))}"
            )
    merged: dict[str, Any] = {}
    for name in (ALL, *LIKE.get(algo, ()), algo):
        merged |= _flat(sections.get(name, {}))
    for name in ("env", "algo"):
        if name in merged:
            raise ConfigError(f"preset {path} sets {name}, which is the user's to choose. Take it out.")
    return _typed(merged, f" in preset {path.name}")


def presets() -> list[str]:
    return sorted(path.stem for path in PRESETS.glob("*.toml"))


def to_dict(config: Config) -> dict[str, Any]:
    """Nested, JSON-able: what a run's config.json holds."""
    return dataclasses.asdict(config)


def from_dict(nested: Mapping[str, Any], changes: Mapping[str, Any] | None = None) -> Config:
    """The settings that `to_dict` gave, with some changed; all is checked again."""
    values = {**_typed(_flat(nested), " in the saved config"), **_typed(changes or {}, "")}
    config = _built(values)
    check(config)
    refuse_unused(config, changes or {})
    return config


@cache
def known() -> dict[str, Any]:
    """Every setting's dotted name and type."""
    found: dict[str, Any] = {}
    for name, kind in typing.get_type_hints(Config).items():
        if dataclasses.is_dataclass(kind):
            found |= {f"{name}.{sub}": sub_kind for sub, sub_kind in typing.get_type_hints(kind).items()}
        else:
            found[name] = kind
    return found


def nearest(name: str, names: Iterable[str]) -> str:
    """The end of a sentence about a wrong name: the one that was meant, or all there are."""
    names = list(names)
    # A name without its part ("lr" for "learner.lr") is near too.
    close = [full for full in names if full.rpartition(".")[2] == name.rpartition(".")[2]]
    close = close or difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if close:
        return f". Did you mean {' or '.join(close)}?"
    return f". There are: {', '.join(names)}." if len(names) <= 20 else "."


def _typed(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    typed = {}
    for name, value in values.items():
        if name not in known():
            raise ConfigError(f"there is no setting {name!r}{where}{nearest(name, known())}")
        typed[name] = _as(known()[name], value, f"{name}={value!r}{where}")
    return typed


def _as(kind: Any, value: Any, shown: str) -> Any:
    origin = typing.get_origin(kind)
    if origin is typing.Literal:
        options = typing.get_args(kind)
        if value not in options:
            raise ConfigError(f"{shown} is not known{nearest(str(value), options)}")
        return value
    if origin is tuple and isinstance(value, (list, tuple)):
        return tuple(_as(typing.get_args(kind)[0], part, shown) for part in value)
    if origin is types.UnionType or origin is typing.Union:
        inner = [part for part in typing.get_args(kind) if part is not type(None)]
        return None if value is None else _as(inner[0], value, shown)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(kind, type) and isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    wanted = getattr(kind, "__name__", str(kind)) if origin is None else "a list of whole numbers"
    raise ConfigError(f"{shown} must be {wanted}, not {type(value).__name__}.")


def _flat(nested: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in nested.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{sub}": inner for sub, inner in value.items()}
        else:
            flat[name] = value
    return flat


def _built(flat: Mapping[str, Any]) -> Config:
    own = {name: value for name, value in flat.items() if "." not in name}
    for name, part in typing.get_type_hints(Config).items():
        if dataclasses.is_dataclass(part):
            inner = {key[len(name) + 1 :]: value for key, value in flat.items() if key.startswith(f"{name}.")}
            own[name] = part(**inner)  # type: ignore[operator]
    return Config(**own)
