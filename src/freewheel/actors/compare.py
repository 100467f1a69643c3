"""What acting in fewer bits gives, and what it costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from freewheel.machine.trial import measure

Call = Callable[[], object]


@dataclass(frozen=True)
class Compared:
    """How many times as fast it is as the network as trained, and how often it chooses the same action."""

    speed: float
    agreement: float

    def __str__(self) -> str:
        return f"{self.speed:.2f} times as fast as fp32, the same action in {100 * self.agreement:.1f} % of cases"


def speed_of(plain: Call, whole: Call) -> float:
    """How many times as fast the second is, by the best round of each."""
    times = measure({"plain": plain, "whole": whole})
    return min(times["plain"]) / min(times["whole"])
