"""The same mathematics written as loops over plain numbers: slow, and plainly what the definitions say."""

from __future__ import annotations

import math
from collections.abc import Sequence

Row = Sequence[float]


def huber(u: float, delta: float) -> float:
    return 0.5 * u * u if abs(u) <= delta else delta * (abs(u) - 0.5 * delta)


def target(reward: float, discount: float, next_q: Row, choose_q: Row) -> float:
    return reward + discount * next_q[max(range(len(choose_q)), key=lambda a: choose_q[a])]


def quantile_huber(online: Row, goal: Row, taus: Row, kappa: float) -> float:
    total = 0.0
    for value, tau in zip(online, taus, strict=True):
        for wanted in goal:
            u = wanted - value
            total += abs(tau - (1.0 if u < 0 else 0.0)) * huber(u, kappa) / kappa / len(goal) / len(online)
    return total


def project(chances: Row, reward: float, discount: float, v_min: float, v_max: float) -> list[float]:
    count = len(chances)
    gap = (v_max - v_min) / (count - 1)
    out = [0.0] * count
    for i, chance in enumerate(chances):
        value = min(max(reward + discount * (v_min + i * gap), v_min), v_max)
        place = (value - v_min) / gap
        low = min(math.floor(place), count - 1)
        high = min(low + 1, count - 1)
        out[low] += chance * (1 - (place - low))
        out[high] += chance * (place - low)
    return out
