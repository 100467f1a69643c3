"""What acting in fewer bits gives, and what it costs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

ROUNDS = 5

Call = Callable[[], Tensor]


@dataclass(frozen=True)
class Compared:
    """How many times as fast it is as the network as trained, and how often it chooses the same action."""

    speed: float
    agreement: float

    def __str__(self) -> str:
        return f"{self.speed:.2f} times as fast as fp32, the same action in {100 * self.agreement:.1f} % of cases"


def speed_of(plain: Call, whole: Call) -> float:
    """How many times as fast the second is; in turn, and the best round counts."""
    times = [(_seconds(plain), _seconds(whole)) for _ in range(ROUNDS)]
    return min(one for one, _ in times) / min(other for _, other in times)


def agreement_of(plain: Tensor, whole: Tensor) -> float:
    """Of values [k, A], the share of rows whose best action is the same."""
    return float((plain.argmax(1) == whole.argmax(1)).float().mean())


def _seconds(call: Call) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun
