"""Whether a speed has fallen: the interval of the ratio of two sides that were measured in pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from scipy import stats

# What a side may lose before the gate closes, as a ratio of its speed to the base's.
LEAST_RATIO = 0.97
CONFIDENCE = 0.95


class Verdict(Enum):
    HOLDS = "holds"
    SLOWER = "SLOWER"
    OPEN = "open"


@dataclass(frozen=True)
class Interval:
    """Of the geometric mean of the ratios; infinitely wide while one pair says nothing about the spread."""

    low: float
    mean: float
    high: float

    def verdict(self, least: float = LEAST_RATIO) -> Verdict:
        if self.high < least:
            return Verdict.SLOWER
        return Verdict.HOLDS if self.low >= least else Verdict.OPEN


def interval(ratios: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """By Student's t on the logarithms: a ratio and its inverse are then equally far from 1."""
    logs = [math.log(ratio) for ratio in ratios]
    count, mean = len(logs), math.fsum(logs) / len(logs)
    if count < 2:
        return Interval(0.0, math.exp(mean), math.inf)
    spread = math.sqrt(math.fsum((log - mean) ** 2 for log in logs) / (count - 1) / count)
    reach = float(stats.t.ppf((1 + confidence) / 2, count - 1)) * spread
    return Interval(math.exp(mean - reach), math.exp(mean), math.exp(mean + reach))


def needs_round(ratios: Sequence[float], least_rounds: int, most_rounds: int) -> bool:
    """Every case has `least_rounds`; only one whose interval straddles the bound has more."""
    if len(ratios) < least_rounds:
        return True
    return len(ratios) < most_rounds and interval(ratios).verdict() is Verdict.OPEN
