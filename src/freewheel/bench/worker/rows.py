"""The rows all replay buffers are filled with and measured on: one block of an episode, repeated."""

import functools
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# A CartPole episode that reaches its time limit; the end of an episode is as rare as in training.
EPISODE_ROWS = 500
NUM_ACTIONS = 4
ALPHA, BETA, GAMMA = 0.6, 0.4, 0.99

_NAME = re.compile(r"(f32|u8)\[(\d+(?:,\d+)*)\]")
_DTYPES: dict[str, type[np.float32] | type[np.uint8]] = {"f32": np.float32, "u8": np.uint8}


@dataclass(frozen=True)
class Obs:
    """One kind of observation, by its name in cases: `f32[8]`, or `u8[4,84,84]` for 4 stacked frames."""

    name: str
    dtype: type[np.float32] | type[np.uint8]
    shape: tuple[int, ...]

    @property
    def is_stacked(self) -> bool:
        return len(self.shape) == 3

    @property
    def num_bytes(self) -> int:
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize


def parse_obs(name: str) -> Obs:
    """`ValueError` for a name that is not a dtype and a shape."""
    found = _NAME.fullmatch(name)
    if found is None:
        raise ValueError(f"observation {name!r} is not of the form f32[8] or u8[4,84,84]")
    return Obs(name, _DTYPES[found[1]], tuple(int(n) for n in found[2].split(",")))


@dataclass(frozen=True)
class Block:
    """One episode as transitions; the last row is truncated by the time limit."""

    obs: Array
    next_obs: Array
    action: Array
    reward: Array
    terminated: Array
    truncated: Array

    def __len__(self) -> int:
        return len(self.action)


def random_frames(obs: Obs, count: int) -> Array:
    """`count` random single observations: of a stacked kind, single frames."""
    rng = np.random.default_rng(0)
    shape = (count, *(obs.shape[1:] if obs.is_stacked else obs.shape))
    if obs.dtype == np.uint8:
        return rng.integers(0, 255, shape, dtype=np.uint8)
    return rng.standard_normal(shape, dtype=np.float32)


@functools.lru_cache(maxsize=1)
def episode(obs: Obs) -> Block:
    """What an env with its frame stack already made gives a peer: whole observations, before and after."""
    rng = np.random.default_rng(1)
    if obs.is_stacked:
        stack = obs.shape[0]
        frames = random_frames(obs, EPISODE_ROWS + stack)
        whole = np.stack([frames[k : k + EPISODE_ROWS + 1] for k in range(stack)], axis=1)
    else:
        whole = random_frames(obs, EPISODE_ROWS + 1)
    truncated = np.zeros(EPISODE_ROWS, np.bool_)
    truncated[-1] = True
    return Block(
        obs=whole[:-1],
        next_obs=whole[1:],
        action=rng.integers(0, NUM_ACTIONS, EPISODE_ROWS),
        reward=rng.standard_normal(EPISODE_ROWS, dtype=np.float32),
        terminated=np.zeros(EPISODE_ROWS, np.bool_),
        truncated=truncated,
    )


def steps(block: Block, lanes: int) -> list[Block]:
    """The block as `EPISODE_ROWS` steps of `lanes` envs that end together; built before the clock starts."""
    starts = range(0, len(block) - lanes, lanes)
    ended, running = np.ones(lanes, np.bool_), np.zeros(lanes, np.bool_)
    made = []
    for step, start in zip(range(EPISODE_ROWS), itertools.cycle(starts), strict=False):
        rows = slice(start, start + lanes)
        made.append(
            Block(
                block.obs[rows],
                block.next_obs[rows],
                block.action[rows],
                block.reward[rows],
                running,
                ended if step == EPISODE_ROWS - 1 else running,
            )
        )
    return made


def fresh_priorities() -> Callable[[int], Array]:
    """New priorities on each call, drawn before they are asked for: what a learner would hand back."""
    rng = np.random.default_rng(2)
    ready: dict[int, Iterator[Array]] = {}

    def draw(batch: int) -> Array:
        if batch not in ready:
            ready[batch] = itertools.cycle([rng.random(batch, dtype=np.float32) + 0.01 for _ in range(8)])
        return next(ready[batch])

    return draw
