"""The numbers that a setting may have, as part of its type: `lanes: Annotated[int, Range(1, 4096)] = 8`."""

from __future__ import annotations

import math
import sys
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
Share = Annotated[float, Range(0, 1)]
BelowOne = Annotated[float, Range(0, math.nextafter(1, 0), "at least 0 and below 1")]
AboveZero = Annotated[float, Range(SMALLEST, sys.float_info.max, "above 0 and finite")]
NotNegative = Annotated[float, Range(0)]
Natural = Annotated[int, Range(0)]
Positive = Annotated[int, Range(1)]
