"""Facts that an env and its spaces show by themselves, apart from any run."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
from gymnasium import spaces

from freewheel.doctor.env_costs import legal_for, samples_of
from freewheel.doctor.facts import Fact
from freewheel.spec import RowSpec, Space
from freewheel.worlds.world import Group

ENV = "env"
BY_NAME = "made by its name in each process, as here"
REPEAT_STEPS = 100
# An image in floats takes four or eight times the memory of its bytes.
IMAGE_VALUES = 1_000


def space_facts(group: Group) -> Iterator[Fact]:
    fields = [field for field in RowSpec.of(group.obs_space, group.action_space).fields if field.is_observation]
    size = sum(field.num_bytes for field in fields)
    shown = f"{_outline(group.obs_space)}, {size:,} bytes"
    wasteful = [name for name, space in _leaves("obs", group.obs_space) if _is_float_image(space)]
    if wasteful:
        cure = f"{', '.join(wasteful)} holds pixels as floats: give uint8, which takes a quarter or less of the memory."
        yield Fact(ENV, "observations", shown, size, "warning", cure)
    else:
        yield Fact(ENV, "observations", shown, size)
    yield Fact(ENV, "actions", _outline(group.action_space), str(group.action_space))


def _leaves(name: str, space: Space) -> Iterator[tuple[str, Space]]:
    if isinstance(space, spaces.Dict):
        for key, sub in space.spaces.items():
            yield from _leaves(f"{name}.{key}", sub)
    elif isinstance(space, spaces.Tuple):
        for i, sub in enumerate(space.spaces):
            yield from _leaves(f"{name}.{i}", sub)
    else:
        yield name, space


def _is_float_image(space: Space) -> bool:
    if not isinstance(space, spaces.Box) or np.dtype(space.dtype).kind != "f" or len(space.shape) < 2:
        return False
    return bool(int(np.prod(space.shape)) >= IMAGE_VALUES and space.low.min() >= 0 and space.high.max() == 255)


def _outline(space: Space) -> str:
    """A space without the bounds that fill a screen."""
    if isinstance(space, spaces.Dict):
        return "Dict(" + ", ".join(f"{key}: {_outline(sub)}" for key, sub in space.spaces.items()) + ")"
    if isinstance(space, spaces.Tuple):
        return "Tuple(" + ", ".join(map(_outline, space.spaces)) + ")"
    return f"Box{space.shape} {space.dtype}" if isinstance(space, spaces.Box) else str(space)


def pickling_fact(env: Any) -> Fact:
    """`train` hands the name over, so this is no condition; an env object given in Python would have to be pickled."""
    try:
        ForkingPickler.dumps(env)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"[:120]
        note = "In Python give train() this name or a function that makes the env, not an env."
        return Fact(ENV, "processes", f"{BY_NAME}; an env object cannot be pickled ({reason})", False, "ok", note)
    return Fact(ENV, "processes", f"{BY_NAME}; an env object can be pickled too", True)


def repeats_fact(env: Any, by_mask: bool) -> Fact:
    """Whether the same seed and actions lead to the same numbers: runs repeat and resume exactly only then."""
    if _episode(env, by_mask) == _episode(env, by_mask):
        return Fact(ENV, "seed", "the same seed and actions gave the same episode", True)
    cure = (
        "Runs will not repeat or resume exactly: draw all that is random from self.np_random, which reset(seed=) sets."
    )
    return Fact(ENV, "seed", "the same seed and actions gave another episode", False, "warning", cure)


def _episode(env: Any, by_mask: bool) -> list[bytes]:
    legal = legal_for(env.observation_space, env.action_space, by_mask)
    observed, _ = env.reset(seed=1)
    seen = [_bytes(observed)]
    for action in samples_of(env.action_space)[:REPEAT_STEPS]:
        taken = action if legal is None else legal.one(action, observed)
        observed, reward, terminated, truncated, _ = env.step(taken)
        seen.append(_bytes(observed) + repr(float(reward)).encode())
        if terminated or truncated:
            break
    return seen


def _bytes(observed: Any) -> bytes:
    if isinstance(observed, dict):
        return b"".join(_bytes(observed[key]) for key in sorted(observed))
    if isinstance(observed, tuple):
        return b"".join(map(_bytes, observed))
    return np.asarray(observed).tobytes()
