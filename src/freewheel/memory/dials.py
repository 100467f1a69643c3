"""Dials: numbers that may change while a run goes on, in shared memory that outlives every role."""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np

from freewheel.errors import ConfigError
from freewheel.memory.counter import Counters
from freewheel.memory.segment import Segment, Shared

# The least and the most that a dial may be set to.
DIALS: dict[str, tuple[float, float]] = {
    "epsilon": (0.0, 1.0),
    "lr": (0.0, 1e3),
    "ratio": (1e-6, 1e6),
    "prioritized": (0.0, 1.0),
}
SWITCHES = ("prioritized",)  # either their least or their most
# Words of a dial: its value, and the steps and updates of its policy when it was set.
WORDS = 3


class Dials(Shared):
    """Named numbers, each unset or set; `version` rises with every change.

    One process sets them, any number read: a number is one aligned word, so it is never seen half written. A role that counts
    by a dial counts from `since`: all roles then count from the same point, whenever each of them looks.
    """

    handed = ("segment", "_version")

    def __init__(self) -> None:
        self.segment = Segment.create(8 * WORDS * len(DIALS), "the dials")
        self._version = Counters(1)
        self._open()
        self._values[:] = math.nan

    def _open(self, format_at: int | None = None) -> None:
        memory = mmap.mmap(self.segment.core.fd, self.segment.num_bytes)
        self._values: np.ndarray[Any, Any] = np.ndarray((len(DIALS), WORDS), np.float64, memory)
        self._changes = self._version.part(0)
        self._places = {name: i for i, name in enumerate(DIALS)}

    @property
    def version(self) -> int:
        return self._changes.value

    def value(self, name: str) -> float | None:
        """None: the settings hold."""
        value = float(self._values[self._places[name], 0])
        return None if math.isnan(value) else value

    def since(self, name: str) -> tuple[float, int] | None:
        """Steps and updates of the policy when it was set or given back; None if it never was."""
        _, steps, updates = self._values[self._places[name]]
        return None if math.isnan(steps) else (float(steps), int(updates))

    def set(self, name: str, value: float | None, since: tuple[float, int] = (0, 0)) -> None:
        """None gives the settings back."""
        self.check(name, value)
        self._values[self._places[name]] = (math.nan if value is None else value, *since)
        self._version.add(0)  # pairs with the readers' look at the version: the number is there

    def check(self, name: str, value: float | None) -> None:
        if name not in DIALS:
            raise ConfigError(f"there is no dial {name!r}; there are {', '.join(DIALS)}.")
        least, most = DIALS[name]
        if name in SWITCHES:
            if value is not None and value not in (least, most):
                raise ConfigError(f"the dial {name}={value!r} must be {least:.0f} or {most:.0f}.")
            return
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        if value is not None and not (is_number and least <= value <= most):
            raise ConfigError(f"the dial {name}={value!r} must be a number between {least} and {most}.")

    def state(self) -> dict[str, float]:
        """The dials that are set."""
        return {name: value for name in DIALS if (value := self.value(name)) is not None}

    def set_state(self, state: Mapping[str, float]) -> None:
        for name, value in state.items():
            self.set(name, value)
