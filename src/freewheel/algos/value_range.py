"""What rewards and the discount allow action values to be, and warnings of values that are not so."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

import numpy as np

from freewheel.memory.lanes import Lanes, Reader

# Rows read in a look; more than that are not written between two.
MOST_ROWS = 1 << 16
# A network may be beyond what is possible by this factor before a warning, and by 1 where hardly a reward was seen.
MARGIN = 2.0
# Larger values are far from what learning rates and Huber's threshold are made for.
MOST_VALUE = 1e4
# A problem is reported once it was there in so many looks in a row.
PATIENCE = 5


class RewardRange:
    """The least and the largest reward in the rows of these lanes so far, with 0, which comes after an end."""

    def __init__(self, lanes: Lanes) -> None:
        self.low = self.high = 0.0
        self.is_whole = True  # no row went by unseen, such as those before a resumed run
        self._lanes = lanes
        self._reader: Reader | None = None
        self._seen = np.zeros(lanes.num_lanes, np.int64)

    def look(self) -> None:
        """Reads the rows since the look before."""
        reader = self._reader = self._reader or Reader(self._lanes)
        heads = reader.heads()
        first = reader.readable(np.maximum(self._seen, heads - MOST_ROWS // len(heads)), heads)
        first = np.maximum(first, reader.base)
        self.is_whole = self.is_whole and not (first > self._seen).any()
        places = np.arange(int((heads - first).max()))
        lanes, which = np.nonzero(places < (heads - first)[:, None])
        if len(lanes):
            rewards = reader.columns["reward"][reader.at(lanes, first[lanes] + places[which])]
            self.low, self.high = min(self.low, float(rewards.min())), max(self.high, float(rewards.max()))
        self._seen = heads

    def values(self, gamma: float, bonus: float = 0.0) -> tuple[float, float]:
        """No policy has values beyond these. `bonus` is what a step may add to its reward, or take from it."""
        low, high = self.low - bonus, self.high + bonus
        if gamma == 1:
            return (-math.inf if low else 0.0), (math.inf if high else 0.0)
        return low / (1 - gamma), high / (1 - gamma)


class PersistentProblems:
    """Lets a warning pass once: when it was given in `PATIENCE` looks in a row."""

    def __init__(self) -> None:
        self._counts = Counter[str]()

    def told(self, found: Mapping[str, str]) -> list[str]:
        """`found` has the text of each problem by its name."""
        for name, count in self._counts.items():
            if name not in found and count < PATIENCE:
                self._counts[name] = 0
        self._counts.update(found.keys())
        return [text for name, text in found.items() if self._counts[name] == PATIENCE]


def beyond(
    metrics: Mapping[str, float], rewards: RewardRange, gamma: float, section: str = "q", bonus: float = 0.0
) -> dict[str, str]:
    """Problems of action values between metrics q_min and q_max. The settings of `section` have gamma."""
    low, high = metrics.get("q_min", 0.0), metrics.get("q_max", 0.0)
    least, most = rewards.values(gamma, bonus)
    if rewards.is_whole and (low < MARGIN * least - 1 or high > MARGIN * most + 1):
        return {
            "beyond": f"action values are between {low:.4g} and {high:.4g}, but rewards between {rewards.low:.4g} and "
            f"{rewards.high:.4g} with {section}.gamma={gamma} allow {least:.4g} to {most:.4g} only: they grow without a reason. Lower "
            "learner.lr, or let the target network follow more slowly (learner.tau, learner.target_every_updates)"
        }
    if max(-low, high) > MOST_VALUE:
        return {
            "large": f"action values are between {low:.4g} and {high:.4g}: so large ones learn badly. Set world.reward_scale, or "
            "world.reward_clip"
        }
    return {}
