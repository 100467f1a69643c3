"""Facts about an env and its spaces that hold for any run."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
from gymnasium import spaces

from freewheel.doctor.facts import ENV, Fact
from freewheel.spec import RowSpec, Space, flatten, leaves
from freewheel.worlds.legal import RandomActions
from freewheel.worlds.world import Group

BY_NAME = "each process makes the env by its name"
REPEAT_STEPS = 100
# A float image takes four or eight times the memory of a uint8 image.
IMAGE_VALUES = 1_000


def space_facts(group: Group) -> Iterator[Fact]:
    fields = [field for field in RowSpec.of(group.obs_space, group.action_space).fields if field.is_observation]
    size = sum(field.num_bytes for field in fields)
    shown = f"{_outline(group.obs_space)}, {size:,} bytes"
    wasteful = [name for name, _, space in leaves(group.obs_space, "obs") if _is_float_image(space)]
    cure = f"{', '.join(wasteful)} holds pixels as floats: return uint8, which needs a quarter of the memory or less."
    yield Fact(ENV, "observations", shown, size).flagged(bool(wasteful), cure)
    yield Fact(ENV, "actions", _outline(group.action_space), str(group.action_space))


def _is_float_image(space: Space) -> bool:
    if not isinstance(space, spaces.Box) or np.dtype(space.dtype).kind != "f" or len(space.shape) < 2:
        return False
    return bool(int(np.prod(space.shape)) >= IMAGE_VALUES and space.low.min() >= 0 and space.high.max() == 255)


def _outline(space: Space) -> str:
    """A space without its bounds, which may be long."""
    if isinstance(space, spaces.Dict):
        return "Dict(" + ", ".join(f"{key}: {_outline(sub)}" for key, sub in space.spaces.items()) + ")"
    if isinstance(space, spaces.Tuple):
        return "Tuple(" + ", ".join(map(_outline, space.spaces)) + ")"
    return f"Box{space.shape} {space.dtype}" if isinstance(space, spaces.Box) else str(space)


def pickling_fact(env: Any) -> Fact:
    """Not needed by the `train` command, which passes the name on; an env object passed to `train()` must be picklable."""
    try:
        ForkingPickler.dumps(env)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"[:120]
        note = "In Python, pass train() this name or a function that makes the env, not an env object."
        return Fact(ENV, "processes", f"{BY_NAME}; the env object cannot be pickled ({reason})", False, "ok", note)
    return Fact(ENV, "processes", f"{BY_NAME}; the env object can be pickled too", True)


def repeats_fact(env: Any, by_mask: bool) -> Fact:
    """Whether the same seed and actions give the same episode: only then is a run reproducible."""
    if _episode(env, by_mask) == _episode(env, by_mask):
        return Fact(ENV, "seed", "the same seed and actions gave the same episode", True)
    cure = "Runs are not reproducible. Draw all random numbers from self.np_random, which reset(seed=...) seeds."
    return Fact(ENV, "seed", "the same seed and actions gave different episodes", False, "warning", cure)


def _episode(env: Any, by_mask: bool) -> list[bytes]:
    actions = RandomActions(env.observation_space, env.action_space, by_mask)
    observed, _ = env.reset(seed=1)
    seen = [_bytes(env, observed)]
    for i in range(REPEAT_STEPS):
        observed, reward, terminated, truncated, _ = env.step(actions.one(i, observed))
        seen.append(_bytes(env, observed) + repr(float(reward)).encode())
        if terminated or truncated:
            break
    return seen


def _bytes(env: Any, observed: Any) -> bytes:
    return b"".join(column.tobytes() for column in flatten("obs", env.observation_space, observed).values())
