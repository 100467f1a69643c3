"""Builds an algorithm from settings and spaces, with the seeds of its random streams."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from freewheel.config import Config, find_algo
from freewheel.contracts import Spaces
from freewheel.nets.budget import Budget


def seed_of(config: Config, stream: str) -> int:
    """The seed of one random stream, derived from the run's seed and the name of the stream."""
    mixed = np.random.SeedSequence([config.seed, *stream.encode()]).generate_state(1, np.uint64)
    return int(mixed[0]) >> 1


def stream_seed(config: Config, policy: str, stream: str) -> int:
    """The seed of a policy's stream, whose name begins with the policy's where there are several."""
    return seed_of(config, f"{policy}.{stream}" if policy else stream)


def make_algo(
    config: Any, spaces: Spaces, policy: str = "", body: Any = None, loss: Any = None, copies: int = 1
) -> Any:
    """With its network, whose initial weights are the same in every process. Refuses one that does not fit into memory `copies` times."""
    with Budget(config.net, {"observations": spaces.obs, "actions": spaces.action}, copies):
        return find_algo(config.algo)(config, spaces, partial(stream_seed, config, policy), body, loss)
