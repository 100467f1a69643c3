"""Shapes and dtypes of one row: the contract that worlds, actors, memory and learners share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from freewheel.errors import ConfigError

Space = spaces.Space[Any]
# The field of a Dict observation that marks the allowed actions.
MASK = "action_mask"


@dataclass(frozen=True)
class Field:
    """One named array of a row. Only observations are stacked, and sampled for the next state too."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    is_observation: bool

    @property
    def num_bytes(self) -> int:
        return int(np.dtype(self.dtype).itemsize * np.prod(self.shape, dtype=np.int64))

    @property
    def num_words(self) -> int:
        """Its size in a row, in 64-bit words."""
        return (self.num_bytes + 7) // 8


@dataclass(frozen=True)
class RowSpec:
    """The named fields of a row, in memory order.

    Nested spaces become fields with dotted names: the observation Dict(pos=..., bag=Tuple(a, b)) gives `obs.pos`,
    `obs.bag.0` and `obs.bag.1`. Every row also has a reward, terminated, truncated, the number of steps since the episode
    began, the version of the weights that chose the action, and a priority.
    """

    fields: tuple[Field, ...]

    @classmethod
    def of(
        cls, observation: Space, action: Space, extra: Mapping[str, tuple[str, tuple[int, ...]]] | None = None
    ) -> RowSpec:
        """The row of these spaces; `extra` adds columns by name, as (dtype, shape), such as log_prob."""
        fields = [*fields_of("obs", observation, is_observation=True), *fields_of("action", action)]
        for name, (dtype, shape) in (extra or {}).items():
            _check_extra(name, dtype, [field.name for field in fields])
            fields.append(Field(name, str(np.dtype(dtype)), tuple(shape), False))
        return cls(tuple(fields))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.fields)

    @property
    def payload_words(self) -> int:
        return sum(field.num_words for field in self.fields)


def _parts(space: Space) -> list[tuple[Any, Space]] | None:
    """The parts of a nested space by key or index; None if it is not nested."""
    if isinstance(space, spaces.Dict):
        return list(space.spaces.items())
    return list(enumerate(space.spaces)) if isinstance(space, spaces.Tuple) else None


def leaves(space: Space, name: str = "", path: tuple[Any, ...] = ()) -> Iterator[tuple[str, tuple[Any, ...], Space]]:
    """The spaces that hold numbers, each with its dotted name ("pos", "bag.0"; `name` comes first) and the keys that lead to it."""
    parts = _parts(space)
    if parts is None:
        yield name, path, space
    for key, part in parts or ():
        yield from leaves(part, f"{name}.{key}" if name else str(key), (*path, key))


def flatten(name: str, space: Space, value: Any) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of a (batched) value of a nested space, by field name."""
    parts = _parts(space)
    if parts is None:
        return {name: np.asarray(value, dtype=_dtype(name, space))}
    flat = (flatten(f"{name}.{key}", sub, value[key]) for key, sub in parts)
    return {field: array for part in flat for field, array in part.items()}


def unflatten(name: str, space: Space, fields: Mapping[str, Any]) -> Any:
    """The value of a nested space from its fields: the inverse of `flatten`."""
    parts = _parts(space)
    if parts is None:
        return fields[name]
    made = {key: unflatten(f"{name}.{key}", sub, fields) for key, sub in parts}
    return made if isinstance(space, spaces.Dict) else tuple(made.values())


def as_observation(fields: Mapping[str, Any]) -> Any:
    """The fields of a row's observation as a network takes them: one tensor, or a dict of the parts of a nested space."""
    return fields["obs"] if "obs" in fields else {name.removeprefix("obs."): part for name, part in fields.items()}


def fields_of(name: str, space: Space, *, is_observation: bool = False) -> list[Field]:
    """The fields of a nested space, in the order of `flatten`."""
    fields = []
    for own, _, part in leaves(space, name):
        dtype, shape = _dtype(own, part), tuple(int(n) for n in part.shape or ())
        if 0 in shape:
            raise ConfigError(f"space {own} has shape {shape}, which holds no number. Remove it from the env's space.")
        fields.append(Field(own, str(dtype), shape, is_observation))
    return fields


def _dtype(name: str, space: Space) -> np.dtype[Any]:
    if not isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        raise ConfigError(
            f"space {name} is {type(space).__name__}; supported are Box, Discrete, MultiDiscrete, MultiBinary, and Dict and "
            "Tuple of these. Wrap the env to give one of them."
        )
    dtype = np.dtype(space.dtype)
    if dtype.kind not in "fiub":
        raise ConfigError(f"space {name} has dtype {dtype}; supported are floats, integers and booleans.")
    return dtype


def _check_extra(name: str, dtype: str, taken: list[str]) -> None:
    if name in taken or name.split(".")[0] in ("obs", "next_obs", "action"):
        raise ConfigError(f"extra column {name!r} needs another name: the row has {', '.join(taken)}.")
    if np.dtype(dtype).kind not in "fiub":
        raise ConfigError(f"extra column {name!r} has dtype {dtype}; supported are floats, integers and booleans.")


def choices(space: Space) -> tuple[list[int], list[int]]:
    """The number of options of each choice, and its first option; empty for a space that is no choice."""
    if isinstance(space, spaces.Discrete):
        return [int(space.n)], [int(space.start)]
    if isinstance(space, spaces.MultiDiscrete):
        return space.nvec.reshape(-1).tolist(), np.reshape(space.start, -1).tolist()
    if isinstance(space, spaces.MultiBinary):
        return [2] * int(np.prod(space.shape)), [0] * int(np.prod(space.shape))
    return [], []


def any_value(space: Space) -> np.ndarray[Any, Any]:
    """A value that the space allows, always the same: its first option, or what is nearest to 0."""
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        return np.asarray(space.start, space.dtype)
    zeros = np.zeros(space.shape or (), space.dtype)
    return np.clip(zeros, space.low, space.high) if isinstance(space, spaces.Box) else zeros


# The arguments that make a space, by its kind.
ARGUMENTS: dict[type[Space], tuple[str, ...]] = {
    spaces.Box: ("low", "high", "shape", "dtype"),
    spaces.Discrete: ("n", "start", "dtype"),
    spaces.MultiDiscrete: ("nvec", "dtype", "start"),
    spaces.MultiBinary: ("n",),
}


def describe(space: Space) -> dict[str, Any]:
    """A space as data for JSON, which `read_space` reads."""
    if isinstance(space, spaces.Dict):
        keys = list(space.spaces)
        more = (
            {} if all(isinstance(key, str) for key in keys) else {"keys": keys}
        )  # JSON makes texts of an object's keys
        return {"kind": "Dict", "parts": {key: describe(sub) for key, sub in space.spaces.items()}, **more}
    if isinstance(space, spaces.Tuple):
        return {"kind": "Tuple", "parts": [describe(sub) for sub in space.spaces]}
    for kind, names in ARGUMENTS.items():
        if isinstance(space, kind):
            return {"kind": kind.__name__, **{name: _described(name, getattr(space, name)) for name in names}}
    raise ConfigError(f"a {type(space).__name__} space cannot be saved.")


def read_space(data: Mapping[str, Any]) -> Space:
    """The space that `describe` described."""
    if data["kind"] == "Dict":
        parts = zip(data.get("keys", data["parts"]), data["parts"].values(), strict=True)
        return spaces.Dict([(key, read_space(part)) for key, part in parts])  # in this order
    if data["kind"] == "Tuple":
        return spaces.Tuple([read_space(part) for part in data["parts"]])
    given = {name: value for name, value in data.items() if name != "kind"}
    if "dtype" in given:
        given["dtype"] = np.dtype(given["dtype"]).type
    for end in {"low", "high"} & given.keys():
        given[end] = np.broadcast_to(_bounds(given[end], np.dtype(given["dtype"])), given["shape"])
    return next(kind for kind in ARGUMENTS if kind.__name__ == data["kind"])(**given)


def _bounds(value: Any, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    try:
        return np.array(value, np.float64).astype(dtype) if dtype.kind == "f" else np.array(value, dtype)
    except OverflowError as error:
        raise ValueError(f"bounds do not fit {dtype}: {error}") from None


def _described(name: str, value: Any) -> Any:
    """Bounds are one number if all are equal, as for images. Python's JSON writes infinities as words."""
    if name == "dtype":
        return str(value)
    array = np.asarray(value)
    is_one = name in ("low", "high") and array.size and (array == array.flat[0]).all()
    return array.flat[0].item() if is_one else array.tolist()
