"""Shapes and dtypes of one row: the contract that worlds, actors, memory and learners share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from freewheel.errors import ConfigError

Space = spaces.Space[Any]
# The field of a Dict observation that says which actions are allowed.
MASK = "action_mask"


@dataclass(frozen=True)
class Field:
    """One named array of a row. Observations are stacked and gathered for the next state too; the rest is not."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    is_observation: bool

    @property
    def num_bytes(self) -> int:
        return int(np.dtype(self.dtype).itemsize * np.prod(self.shape, dtype=np.int64))

    @property
    def num_words(self) -> int:
        """64-bit words it takes in a row."""
        return (self.num_bytes + 7) // 8


@dataclass(frozen=True)
class RowSpec:
    """The named fields of a row, in the order in which they lie in memory.

    Nested spaces become fields with dotted names: Dict(pos=..., bag=Tuple(a, b)) as an observation gives
    `obs.pos`, `obs.bag.0`, `obs.bag.1`. Beside the fields every row has reward, terminated, truncated, steps since the
    episode began, the policy version it was acted with, and a priority.
    """

    fields: tuple[Field, ...]

    @classmethod
    def of(
        cls, observation: Space, action: Space, extra: Mapping[str, tuple[str, tuple[int, ...]]] | None = None
    ) -> RowSpec:
        """The row of these spaces; `extra` adds columns by name, as (dtype, shape): log-prob, source tag and the like."""
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


def flatten(name: str, space: Space, value: Any) -> dict[str, np.ndarray[Any, Any]]:
    """A (batched) value of a nested space as the arrays of its fields, by field name."""
    if isinstance(space, spaces.Dict):
        parts = [flatten(f"{name}.{key}", sub, value[key]) for key, sub in space.spaces.items()]
    elif isinstance(space, spaces.Tuple):
        parts = [flatten(f"{name}.{i}", sub, value[i]) for i, sub in enumerate(space.spaces)]
    else:
        return {name: np.asarray(value, dtype=_dtype(name, space))}
    return {key: array for part in parts for key, array in part.items()}


def unflatten(name: str, space: Space, fields: Mapping[str, Any]) -> Any:
    """The value of a nested space whose fields these are: what `flatten` takes apart."""
    if isinstance(space, spaces.Dict):
        return {key: unflatten(f"{name}.{key}", sub, fields) for key, sub in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(unflatten(f"{name}.{i}", sub, fields) for i, sub in enumerate(space.spaces))
    return fields[name]


def as_observation(fields: Mapping[str, Any]) -> Any:
    """The fields of a row's observation as a network takes them: one tensor, or a dict of the parts of a nested space."""
    return fields["obs"] if "obs" in fields else {name.removeprefix("obs."): part for name, part in fields.items()}


def fields_of(name: str, space: Space, *, is_observation: bool = False) -> list[Field]:
    """The fields of a nested space, in the order in which `flatten` gives them."""
    if isinstance(space, spaces.Dict):
        parts = [(f"{name}.{key}", sub) for key, sub in space.spaces.items()]
    elif isinstance(space, spaces.Tuple):
        parts = [(f"{name}.{i}", sub) for i, sub in enumerate(space.spaces)]
    else:
        dtype, shape = _dtype(name, space), space.shape or ()
        if 0 in shape:
            raise ConfigError(f"space {name} has shape {shape}: there is nothing in it to store.")
        return [Field(name, str(dtype), tuple(int(n) for n in shape), is_observation)]
    return [field for part, sub in parts for field in fields_of(part, sub, is_observation=is_observation)]


def _dtype(name: str, space: Space) -> np.dtype[Any]:
    if not isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        raise ConfigError(
            f"space {name} is {type(space).__name__}; rows hold Box, Discrete, MultiDiscrete and MultiBinary, "
            "and Dict and Tuple of those. Wrap the env so that it gives one of them."
        )
    dtype = np.dtype(space.dtype)
    if dtype.kind not in "fiub":
        raise ConfigError(f"space {name} has dtype {dtype}; rows hold floats, integers and booleans.")
    return dtype


def _check_extra(name: str, dtype: str, taken: list[str]) -> None:
    if name in taken or name.split(".")[0] in ("obs", "next_obs", "action"):
        raise ConfigError(f"extra column {name!r} has a name that is taken by {', '.join(taken)}.")
    if np.dtype(dtype).kind not in "fiub":
        raise ConfigError(f"extra column {name!r} has dtype {dtype}; rows hold floats, integers and booleans.")


def describe(space: Space) -> dict[str, Any]:
    """A space as JSON-able data, from which `read_space` makes it again."""
    if isinstance(space, spaces.Dict):
        return {"kind": "Dict", "parts": {key: describe(sub) for key, sub in space.spaces.items()}}
    if isinstance(space, spaces.Tuple):
        return {"kind": "Tuple", "parts": [describe(sub) for sub in space.spaces]}
    if isinstance(space, spaces.Box):
        low, high = (_bounds(bound) for bound in (space.low, space.high))
        return {"kind": "Box", "shape": list(space.shape), "dtype": str(space.dtype), "low": low, "high": high}
    if isinstance(space, spaces.Discrete):
        return {"kind": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": str(space.dtype)}
    if isinstance(space, spaces.MultiDiscrete):
        return {"kind": "MultiDiscrete", "nvec": space.nvec.tolist(), "dtype": str(space.dtype)}
    if isinstance(space, spaces.MultiBinary):
        return {"kind": "MultiBinary", "n": space.n if isinstance(space.n, int) else list(space.shape)}
    raise ConfigError(f"a space of kind {type(space).__name__} cannot be saved.")


def read_space(data: Mapping[str, Any]) -> Space:
    """The space that `describe` was given."""
    kind = data["kind"]
    if kind == "Dict":
        return spaces.Dict({key: read_space(part) for key, part in data["parts"].items()})
    if kind == "Tuple":
        return spaces.Tuple([read_space(part) for part in data["parts"]])
    if kind == "Box":
        shape, dtype = tuple(data["shape"]), np.dtype(data["dtype"])
        low, high = (np.broadcast_to(np.array(data[end], np.float64).astype(dtype), shape) for end in ("low", "high"))
        return spaces.Box(low, high, shape, dtype.type)
    if kind == "Discrete":
        return spaces.Discrete(data["n"], start=data["start"])
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(data["nvec"], dtype=np.dtype(data["dtype"]).type)
    return spaces.MultiBinary(data["n"])


def _bounds(bound: np.ndarray[Any, Any]) -> Any:
    """One number where all are equal, as for images; JSON has words for the infinities."""
    return bound.flat[0].item() if bound.size and (bound == bound.flat[0]).all() else bound.tolist()
