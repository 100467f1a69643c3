"""Builds an algorithm from settings and spaces, with the seeds of its random streams."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from freewheel.config import Config, find_algo
from freewheel.contracts import Spaces
from freewheel.errors import ConfigError
from freewheel.nets.budget import Budget
from freewheel.nets.inputs import any_observations
from freewheel.nets.modes import mode_layer, random_layer

# Observations by which a network of the user's own is tried.
TRIED_ROWS = 8


def seed_of(config: Config, stream: str) -> int:
    """The seed of one random stream, derived from the run's seed and the name of the stream."""
    mixed = np.random.SeedSequence([config.seed, *stream.encode()]).generate_state(1, np.uint64)
    return int(mixed[0]) >> 1


def stream_seed(config: Config, policy: str, stream: str) -> int:
    """The seed of a policy's stream, whose name begins with the policy's where there are several."""
    return seed_of(config, f"{policy}.{stream}" if policy else stream)


def refuse_modes(algo: Any) -> None:
    """Refuses to train a network that is random, or another one in training than when it acts if the algorithm compares the two."""
    config = algo.config
    obs = {
        name: rows.numpy() for name, rows in any_observations(algo.spaces.obs, config.world.stack, TRIED_ROWS).items()
    }

    def act(net: Any) -> None:
        seen = {name: rows.copy() for name, rows in obs.items()}  # a network may write into what it is shown
        algo.policy(net, algo.seed, range(1), 1).greedy(seen)

    if (layer := random_layer(algo.net, act)) is not None:
        raise ConfigError(
            f"the network's {layer} draws random numbers in training, which no seed and no checkpoint of the run knows, and which "
            "actors do without. Take it out. learner.optimizer=adamw with learner.weight_decay regularises too."
        )
    if algo.trains_as_it_acts and (layer := mode_layer(algo.net, act)) is not None:
        raise ConfigError(
            f"the network's {layer} gives something else in training than when it acts, but {config.algo} compares the policy that "
            "trains with the one that acted. Use a layer that does the same in both, such as torch.nn.LayerNorm."
        )


def make_algo(
    config: Any, spaces: Spaces, policy: str = "", body: Any = None, loss: Any = None, copies: int = 1
) -> Any:
    """With its network, whose initial weights are the same in every process. Refuses one that does not fit into memory `copies` times."""
    with Budget(config.net, {"observations": spaces.obs, "actions": spaces.action}, copies):
        return find_algo(config.algo)(config, spaces, partial(stream_seed, config, policy), body, loss)
