"""What looks wrong in the first rows that a learner gets. The user is told once; the training goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from freewheel.memory.lanes import Lanes, Reader

# Fewer rewards say little: in many envs only the last one of an episode is not 0.
ENOUGH_ROWS = 1_000


class FirstLook:
    """Called for each batch or rollout, with a function that gives its observations: returns what looks wrong, once, or ""."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes: Lanes | None = lanes  # None: all has been seen
        self._has_seen_obs = False

    def __call__(self, obs: Callable[[], Any]) -> str:
        if self._lanes is None:
            return ""
        found = [] if self._has_seen_obs else [all_alike(obs())]
        self._has_seen_obs = True
        if self._lanes.rows_written() >= ENOUGH_ROWS:
            found.append(all_zero(self._lanes))
            self._lanes = None
        return "; ".join(filter(None, found))


def all_alike(obs: Any) -> str:
    """Rows that are all alike teach nothing. `obs` is an array or a tensor, or a dict of them."""
    parts = list(obs.values()) if isinstance(obs, dict) else [obs]
    if not all(len(rows) > 1 and bool((rows == rows[:1]).all()) for rows in parts):
        return ""
    value = "0" if not any(bool(rows.any()) for rows in parts) else "the same"
    return f"all {len(parts[0])} observations of the first rows are {value}: the agent cannot learn anything from them"


def all_zero(lanes: Lanes) -> str:
    """Without a reward there is nothing to learn yet. Rare rewards are common, so this may be as it should be."""
    reader = Reader(lanes)
    heads = reader.heads()
    counts = np.minimum(heads - reader.base, lanes.lane_rows)
    rewards = reader.columns["reward"]
    for lane, count in enumerate(counts.tolist()):
        if rewards[reader.at(np.full(count, lane), heads[lane] - 1 - np.arange(count))].any():
            return ""
    return (
        f"all rewards of the first {int(counts.sum()):,} rows are 0: until the agent finds another one there is nothing to learn from. "
        "That may be right where rewards are rare"
    )
