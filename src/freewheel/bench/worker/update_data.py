"""What every way to make a DQN update is measured on: the same numbers, first weights and settings, as numpy arrays."""

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# CartPole's four observations and two actions, and the two layers of 128 that small agents have.
SIZES = (4, 128, 128, 2)
GAMMA, LR, CLIP_NORM, HUBER = 0.99, 2.5e-4, 10.0, 1.0
BETA1, BETA2, ADAM_EPS = 0.9, 0.999, 1e-8
# A multiple of all numbers of updates in one call: everybody copies the target between calls, none inside its graph.
TARGET_EVERY = 256
# Batches that are taken in turn: the largest number of updates in one call.
NUM_BATCHES = 32
# One row in fifty ends its episode; it is not discounted but cut off.
ENDED_SHARE = 0.02


def batches(rows: int) -> dict[str, Array]:
    """`NUM_BATCHES` batches of `rows`: every array has the batch first, then the row."""
    rng = np.random.default_rng(0)
    shape = (NUM_BATCHES, rows)
    ended = rng.random(shape) < ENDED_SHARE
    return {
        "obs": rng.standard_normal((*shape, SIZES[0]), dtype=np.float32),
        "action": rng.integers(0, SIZES[-1], shape),
        "next_obs": rng.standard_normal((*shape, SIZES[0]), dtype=np.float32),
        "reward": rng.standard_normal(shape, dtype=np.float32),
        "discount": np.where(ended, 0.0, GAMMA).astype(np.float32),
    }


def first_weights() -> list[Array]:
    """A matrix [out, in] and a bias [out] per layer, of the size that torch's own first weights have."""
    rng = np.random.default_rng(1)
    made: list[Array] = []
    for num_in, num_out in itertools.pairwise(SIZES):
        bound = num_in**-0.5
        made.append(rng.uniform(-bound, bound, (num_out, num_in)).astype(np.float32))
        made.append(rng.uniform(-bound, bound, num_out).astype(np.float32))
    return made
