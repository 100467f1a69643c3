"""Settings in layers, each overriding the one before: defaults, the algorithm's defaults, presets, given settings."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
import types
import typing
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from freewheel.config.algos import find_algo, names
from freewheel.config.check import check, refuse_unused
from freewheel.config.settings import Config
from freewheel.errors import ConfigError, shown
from freewheel.imports import nearest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

PRESETS = Path(__file__).parent / "presets"
# The section of a preset that applies to every algorithm.
ALL = "all"
# Configs saved by version 0.1 have these sections for every algorithm,
OLD_SECTIONS = ("q", "ppo", "explore", "replay", "rollout")
# and these settings for ppo too.
OLD_SETTINGS = ("ppo.rho_bar", "ppo.c_bar")
# Their names of settings that have other names today.
RENAMED = {"local.ahead": "local.target_process"}

# Settings that saved configs may lack, with what their versions did.
ADDED = {"q.head": "linear"}
# A network that gives the values itself is computed in float32: where its last layers begin is not known.
COMPLETE = {"learner.precision": "fp32", "local.act_precision": "fp32"}

# Defaults of a network body that is chosen by name.
BODIES: dict[str, dict[str, Any]] = {"impala": {"net.channels": (16, 32, 32), "net.hidden": (256,)}}
# Presets for a whole family of envs, for envs without their own.
FAMILIES = {
    r"(ale_py:)?(ALE/.+|\w+NoFrameskip-v\d)": "Atari",
    r"SuperMarioBros.*|freewheel\.worlds\.mario:make": "Mario",
}


def assemble(env: str, given: Mapping[str, Any], preset: str = "auto", *, refuses: bool = True) -> Config:
    """The checked settings of a run. `given` has dotted names ("learner.lr") and overrides the preset.

    A given setting without effect is refused, unless `refuses` is False.
    """
    algo = str(given.get("algo", "dqn"))
    cls = find_algo(algo)
    given = _typed(cls, given, "")
    body = BODIES.get(str(given.get("net.body")), {})
    layers = {"env": env, **cls.defaults, **read_preset(env, algo, preset), **body, **given, "algo": algo}
    return _checked(cls, layers, given if refuses else {})


def read_preset(env: str, algo: str, preset: str) -> dict[str, Any]:
    """The settings of presets, separated by commas, for an algorithm; later presets override earlier ones.

    `auto` is the preset of the env or of its family, `none` is no preset; others are a name or a TOML file.
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
        name = next((own for own in (env, *family) if own in presets()), "")
        return PRESETS / f"{name}.toml" if name else None
    if name.endswith(".toml") and os.path.isfile(name):
        return Path(name)
    written = {known.lower(): known for known in presets()}
    if name.lower() not in written:
        raise ConfigError(f"preset {shown(name)} is neither a known preset nor a TOML file{nearest(name, presets())}")
    return PRESETS / f"{written[name.lower()]}.toml"


def _read_file(path: Path, algo: str) -> dict[str, Any]:
    try:
        sections = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"preset {path} cannot be read: {error}.") from error
    cls = find_algo(algo)
    allowed = (ALL, *names(), algo.rpartition(":")[2])
    for name in sections:
        if name not in allowed:
            raise ConfigError(
                f"preset {path} has a section [{name}]; only [{ALL}] and algorithms are allowed{nearest(name, allowed)}"
            )
    # [all] may have settings that some algorithms lack.
    have = {name.partition(".")[0] for name in known(cls.Settings)}
    merged = {name: value for name, value in flat(sections.get(ALL, {})).items() if name.partition(".")[0] in have}
    for name in (*cls.preset_sections, algo.rpartition(":")[2]):
        merged |= flat(sections.get(name, {}))
    for name in ("env", "algo"):
        if name in merged:
            raise ConfigError(f"preset {path} sets {name}, which a preset must not choose. Remove it.")
    return _typed(cls, merged, f" in preset {path.name}")


def presets() -> list[str]:
    return sorted(path.stem for path in PRESETS.glob("*.toml"))


def from_dict(nested: Mapping[str, Any], changes: Mapping[str, Any] | None = None) -> Config:
    """The settings from config.json, which `dataclasses.asdict` gave, with `changes`; all are checked again."""
    cls = find_algo(str(nested.get("algo", "dqn")))
    saved = {
        name: value
        for name, value in nested.items()
        if name in cls.Settings.__dataclass_fields__ or name not in OLD_SECTIONS
    }
    named = {RENAMED.get(name, name): value for name, value in flat(saved).items()}
    named = {name: value for name, value in named.items() if name in known(cls.Settings) or name not in OLD_SETTINGS}
    named = {name: value for name, value in ADDED.items() if name in known(cls.Settings)} | named
    changes = _typed(cls, changes or {}, "")
    return _checked(cls, {**_typed(cls, named, " in the saved config"), **changes}, changes)


@cache
def known(settings: type) -> dict[str, Any]:
    """The type of every setting of an algorithm, by dotted name."""
    found: dict[str, Any] = {}
    for name, kind in typing.get_type_hints(settings).items():
        if dataclasses.is_dataclass(kind):
            found |= {f"{name}.{sub}": sub_kind for sub, sub_kind in typing.get_type_hints(kind).items()}
        else:
            found[name] = kind
    return found


def _typed(cls: Any, values: Mapping[str, Any], where: str) -> dict[str, Any]:
    typed, names = {}, known(cls.Settings)
    for name, value in values.items():
        if name not in names:
            raise ConfigError(f"algo={cls.name} has no setting {shown(name)}{where}{nearest(str(name), names)}")
        typed[name] = _as(names[name], value, f"{name}={shown(value)}{where}")
    return typed


def _as(kind: Any, value: Any, what: str) -> Any:
    origin = typing.get_origin(kind)
    if origin is typing.Literal:
        options = typing.get_args(kind)
        if value not in options:
            raise ConfigError(f"{what} is not known{nearest(what.partition('=')[2][:40], options)}")
        return value
    if origin is tuple and isinstance(value, (list, tuple)):
        return tuple(_as(typing.get_args(kind)[0], part, what) for part in value)
    if origin is types.UnionType or origin is typing.Union:
        inner = [part for part in typing.get_args(kind) if part is not type(None)]
        return None if value is None else _as(inner[0], value, what)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError as error:
            raise ConfigError(f"{what} must be a finite number.") from error
    if isinstance(kind, type) and isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    items = "names" if str in typing.get_args(kind) else "whole numbers"
    expected = getattr(kind, "__name__", str(kind)) if origin is None else f"a list of {items}"
    raise ConfigError(f"{what} must be {expected}, not {type(value).__name__}.")


def flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings by dotted name."""
    found: dict[str, Any] = {}
    for name, value in nested.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found


def _checked(cls: Any, named: Mapping[str, Any], given: Iterable[str]) -> Config:
    """Builds the settings from their dotted names and checks them."""
    named = {**named, **COMPLETE} if named.get("net.complete") else named
    own = {name: value for name, value in named.items() if "." not in name}
    for name, part in typing.get_type_hints(cls.Settings).items():
        if dataclasses.is_dataclass(part):
            inner = {key[len(name) + 1 :]: value for key, value in named.items() if key.startswith(f"{name}.")}
            own[name] = part(**inner)  # type: ignore[operator]
    config: Config = cls.Settings(**own)
    check(config)
    refuse_unused(config, given)
    return config
