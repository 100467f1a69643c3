"""Checks what an env returns. Each fault is an EnvError that says which env and step, what is wrong, and the cure.

The checks of a step cover all lanes at once; only a fault is examined lane by lane.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple, NoReturn

import numpy as np
from gymnasium import spaces

from freewheel.errors import RAISED, Breach, ConfigError, EnvError, FreewheelError, quoted
from freewheel.spec import RowSpec, Space, leaves
from freewheel.worlds.world import Array

_NUMBERS = {float, int, np.float32, np.float64}  # types whose sum does not wrap around
_INTEGERS = {int, *(np.dtype(code).type for code in "bhilqBHILQ")}
_FLAGS = {bool, np.bool_}
_LARGEST = float(np.finfo(np.float32).max)
_shape_of = attrgetter("shape")


class Where(NamedTuple):
    """The place of a fault; lane None is all lanes, step 0 the reset."""

    env: str
    lane: int | None
    step: int
    seed: int

    def error(self, what: str, cure: str) -> EnvError:
        who = f"{self.env} (lane {self.lane})" if self.lane is not None else f"{self.env} (all lanes)"
        when = f"at step {self.step} of the episode" if self.step else "at the reset of the episode"
        return EnvError(f"{who} {what} {when} with seed {self.seed}. {cure}")

    def raised(self, method: str, error: BaseException) -> EnvError:
        if isinstance(error, Breach):
            return self.error(error.what, error.cure)
        return self.error(f"raised {_quote(error)} in {method}()", "The traceback above shows the line of the env.")


Find = Callable[[Any], Where]  # from a position in the batch to its place


@dataclass(frozen=True, slots=True)
class Leaf:
    """One field of an observation and the keys that lead to it in a nested one."""

    name: str
    path: tuple[Any, ...]
    space: Space
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    scalars: frozenset[type]  # allowed types of a value, where the shape is ()
    bounds: tuple[Array, Array] | None  # lowest and highest value of discrete spaces

    def of(self, obs: Any) -> Any:
        for key in self.path:
            obs = obs[key]
        return obs


def obs_leaves(name: str, obs_space: Space, action_space: Space) -> tuple[Leaf, ...]:
    """The fields of an env's observations. Refuses spaces that rows cannot hold."""
    try:
        RowSpec.of(obs_space, action_space)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error
    return tuple(_leaf(*leaf) for leaf in leaves(obs_space, "obs"))


def check_alike(name: str, envs: Sequence[Any]) -> None:
    """Refuses lanes that share an env, or have different spaces."""
    if len(set(map(id, envs))) < len(envs):
        raise ConfigError(f"{name} gave the same env for two lanes. Make a new env in each call of the function.")
    for lane, env in enumerate(envs):
        for kind in ("observation_space", "action_space"):
            mine, first = getattr(env, kind), getattr(envs[0], kind)
            if mine != first:
                raise ConfigError(
                    f"{name}: lane {lane} has the {kind} {mine}, and lane 0 has {first}. All lanes need the same spaces."
                )


def fill(leaf: Leaf, column: Sequence[Any], out: Array, find: Find) -> None:
    """Copies one value per lane into the rows of `out`. Refuses values that are not in the space."""
    if leaf.shape:
        try:
            fits = list(map(_shape_of, column)).count(leaf.shape) == len(column)
            if fits:  # casting: refuses another dtype
                np.concatenate(column, out=out.reshape(-1, *leaf.shape[1:]), casting="no")
        except (AttributeError, TypeError, ValueError):
            fits = False
    else:
        try:
            fits = leaf.scalars.issuperset(map(type, column)) or all(_is_scalar(leaf, value) for value in column)
            if fits:
                out[:] = column
        except (OverflowError, TypeError, ValueError):
            fits = False
    if not fits:
        _refuse_value(leaf, column, find)
    check_values(leaf, out, find)


def check_values(leaf: Leaf, rows: Array, find: Find) -> None:
    """Refuses NaN, infinity, and discrete values outside the space."""
    if leaf.dtype.kind == "f":
        if 0 in np.isfinite(rows).tobytes():  # three times as fast as all() at the size of a step
            i, *index = np.argwhere(~np.isfinite(rows))[0].tolist()
            value = rows[i][tuple(index)]
            what = "NaN" if np.isnan(value) else f"{value}"
            raise find(i).error(
                f"gave {what} in {leaf.name}{index or ''}", "Find where the env divides by zero or overflows."
            )
    elif leaf.bounds is not None:
        low, high = leaf.bounds
        wrong = (rows < low) | (rows > high)
        if wrong.any():
            i, *index = np.argwhere(wrong)[0].tolist()
            raise find(i).error(
                f"gave {rows[i][tuple(index)]} in {leaf.name}{index or ''}, which is not in {leaf.space},",
                "Return a value of the space, or declare a larger space.",
            )


def read_rewards(values: Sequence[Any], out: Array, find: Find) -> None:
    try:
        # All are finite and fit float32 if their sum does; NaN fails the comparison.
        fits = _NUMBERS.issuperset(map(type, values)) and sum(map(abs, values)) <= _LARGEST
    except OverflowError:
        fits = False
    out[:] = values if fits else [read_reward(value, find(i)) for i, value in enumerate(values)]


def read_reward(value: Any, where: Where) -> float:
    plain = value.item() if isinstance(value, (np.ndarray, np.generic)) and value.size == 1 else value
    if type(plain) not in (int, float):
        shown = f"the array of shape {value.shape}" if isinstance(value, np.ndarray) else f"{value!r}"
        raise where.error(
            f"gave {shown} ({type(value).__name__}) as reward",
            "Return the reward as one number, such as float(reward).",
        )
    if not abs(plain) <= _LARGEST:
        raise where.error(
            f"gave the reward {plain}", "A reward is a finite float32: find where the env divides by zero."
        )
    return float(plain)


def read_flags(which: str, values: Sequence[Any], find: Find) -> Sequence[bool]:
    if _FLAGS.issuperset(map(type, values)):
        return values
    return [_read_flag(which, value, find(i)) for i, value in enumerate(values)]


def _read_flag(which: str, value: Any, where: Where) -> bool:
    plain = value.item() if isinstance(value, (np.ndarray, np.generic)) and value.size == 1 else value
    if type(plain) in (bool, int) and plain in (0, 1):
        return bool(plain)
    raise where.error(f"gave {value!r} ({type(value).__name__}) as {which}", f"Return {which} as a bool.")


def read_reset(result: Any, find: Find, lane: int | None) -> Any:
    """The observation that reset() returned."""
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
        raise find(lane).error(
            f"returned {_outline(result)} from reset()", "reset() returns (obs, info), with info a dict."
        )
    return result[0]


def refuse_step(results: Sequence[Any], find: Find) -> NoReturn:
    """Raises the error for the first result with a wrong form."""
    i = next((i for i, one in enumerate(results) if not (isinstance(one, tuple) and len(one) == 5)), 0)
    raise find(i).error(
        f"returned {_outline(results[i])} from step()", "step() returns (obs, reward, terminated, truncated, info)."
    )


def parts_of(leaf: Leaf, observed: Sequence[Any], find: Find) -> list[Any]:
    """The values of this field in each observation."""
    parts: list[Any] = []
    try:
        for one in observed:
            parts.append(leaf.of(one))
    except (KeyError, IndexError, TypeError):
        raise find(len(parts)).error(
            f"gave an observation without {leaf.name}, {_outline(one)},", "Return every part of the declared space."
        ) from None
    return parts


def close_all(name: str, envs: Sequence[Any], first_lane: int = 0) -> None:
    """Closes every env, even if others fail. Raises the first failure, or prints it while another error is raised."""
    failure: EnvError | None = None
    for lane, env in enumerate(envs, first_lane):
        try:
            env.close()
        except RAISED as error:
            if failure is None:
                failure = EnvError(
                    f"{name} (lane {lane}) raised {_quote(error)} in close(). The other lanes were closed; files or ports of this one "
                    "may still be open."
                )
                failure.__cause__ = error
    if failure is not None:
        raise_or_print(failure)


def raise_or_print(failure: FreewheelError) -> None:
    """Prints the failure of a close() if it would hide another error that is being raised."""
    if sys.exc_info()[1] is None:
        raise failure
    print(f"{type(failure).__name__}: {failure}", file=sys.stderr)


def _leaf(name: str, path: tuple[Any, ...], space: Space) -> Leaf:
    dtype, shape = np.dtype(space.dtype), tuple(space.shape or ())
    bounds: tuple[Any, Any] | None = None
    scalars: set[type] = {dtype.type}
    if isinstance(space, spaces.Discrete):
        bounds = (space.start, space.start + space.n - 1)
        scalars = _INTEGERS
    elif isinstance(space, spaces.MultiDiscrete):
        bounds = (space.start, space.start + space.nvec - 1)
    else:
        scalars.add({"f": float, "i": int, "u": int, "b": bool}[dtype.kind])
    return Leaf(name, path, space, dtype, shape, frozenset(scalars), bounds)


def _is_scalar(leaf: Leaf, value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.shape == () and value.dtype.type in leaf.scalars
    return type(value) in leaf.scalars


def _refuse_value(leaf: Leaf, column: Sequence[Any], find: Find) -> NoReturn:
    """Raises the error for the first value that does not fit its space."""
    for i, value in enumerate(column):
        if leaf.shape and not isinstance(value, np.ndarray):
            raise find(i).error(
                f"gave {leaf.name} as {_outline(value)}", f"Return np.array({leaf.name}, dtype=np.{leaf.dtype})."
            )
        if leaf.shape and value.shape != leaf.shape:
            raise find(i).error(
                f"gave {leaf.name} of shape {value.shape}, and its space says {leaf.shape},",
                "Return the declared shape, or declare the returned one.",
            )
        if leaf.shape and value.dtype != leaf.dtype:
            raise find(i).error(
                f"gave {leaf.name} of dtype {value.dtype}, and its space says {leaf.dtype},",
                dtype_cure(leaf, value.dtype),
            )
        if not leaf.shape and not _is_scalar(leaf, value):
            raise find(i).error(f"gave {leaf.name} as {_outline(value)}", f"Return np.{leaf.dtype}({leaf.name}).")
    raise find(0).error(f"gave {leaf.name} that is not in {leaf.space}", "Return values of the space.")


def dtype_cure(leaf: Leaf, dtype: np.dtype[Any]) -> str:
    return f"Return {leaf.name}.astype(np.{leaf.dtype}), or declare dtype {dtype} in the observation space."


def _outline(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)} ({', '.join(type(part).__name__ for part in value)})"
    if isinstance(value, dict):
        return f"a dict of {', '.join(map(str, value)) or 'nothing'}"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


def _quote(error: BaseException) -> str:
    return f"{type(error).__name__}: {quoted(error)}".removesuffix(": ")
