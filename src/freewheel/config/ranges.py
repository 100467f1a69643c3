"""The numbers that a setting may have, as part of its type: `lanes: Annotated[int, Range(1, 4096)] = 8`."""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple


class Range(NamedTuple):
    """From `least` to `most`, both included. `text` says it in words where the two numbers would not."""

    least: float
    most: float = math.inf
    text: str = ""

    def __str__(self) -> str:
        return self.text or (
            f"at least {self.least}" if self.most == math.inf else f"between {self.least} and {self.most}"
        )


SMALLEST = math.ulp(0.0)  # the number after 0
MOST_COUNT = 2**63 - 1  # steps and updates are counted in 64 bits
LARGE = 1e15  # its square, and that of 1 / LARGE, are still numbers in float32
MOST_S = 1e6  # eleven days; the kernel's waits take milliseconds in 32 bits, which is twice as long
Share = Annotated[float, Range(0, 1)]
BelowOne = Annotated[float, Range(0, math.nextafter(1, 0), "at least 0 and below 1")]
AboveZero = Annotated[float, Range(1 / LARGE, LARGE)]
NotNegative = Annotated[float, Range(0, LARGE)]
Natural = Annotated[int, Range(0, MOST_COUNT)]
Positive = Annotated[int, Range(1, MOST_COUNT)]
Size = Annotated[int, Range(1, 2**31 - 1)]  # of a part of the network: its bytes decide whether it fits
Sizes = Annotated[tuple[int, ...], Range(1, 2**31 - 1)]  # of each layer
Rate = Annotated[float, Range(1 / LARGE, 1e3)]
Seconds = Annotated[float, Range(1e-6, MOST_S)]
