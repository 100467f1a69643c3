"""V-trace: returns and advantages of rows that an older policy collected, corrected by how likely the newer one makes them."""

from __future__ import annotations

from typing import Any

import numpy as np

from freewheel.algos.gae import scan

Array = np.ndarray[Any, Any]


def vtrace(
    reward: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    goes_on: Array,
    ratio: Array,
    gamma: float,
    trace_lambda: float = 1.0,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
) -> tuple[Array, Array]:
    """Of arrays [..., T] in the order of time: the goals of the values, and the advantages.

    `ratio` is the chance of the action by the policy that learns over that by the policy that acted. Values are of the policy that
    learns; `next_value`, `terminated` and `goes_on` are as in `gae.advantages`. `rho_bar` bounds the weight of a step's own
    surprise, `c_bar` that of what later steps say about it.

    Where all ratios are 1 the advantages are those of GAE, and the goals those that go with them. Where `trace_lambda` is 1 both are
    V-trace's own.
    """
    rho, c = np.minimum(ratio, np.float32(rho_bar)), np.minimum(ratio, np.float32(c_bar))
    delta = reward + np.float32(gamma) * next_value * ~terminated - value
    factor = np.float32(gamma * trace_lambda) * goes_on
    above = scan(rho * delta, factor * c)  # goal - value
    later = np.zeros_like(above)
    later[..., :-1] = above[..., 1:]
    return value + above, rho * (delta + factor * later)
