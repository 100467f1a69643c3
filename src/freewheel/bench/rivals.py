"""Everybody who is measured beside ours in `bench replay`, each in a process of its own."""

from __future__ import annotations

import math
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from freewheel.bench.child import Child, PeerFailed
from freewheel.bench.harness import Bar
from freewheel.bench.stages import Stage

# A peer fills its buffer at some GB/s when memory is free; the deadline allows for a machine that is busy.
OPEN_TIMEOUT_S = 120.0
OPEN_BYTES_PER_S = 50e6
# A window is exceeded by one call and its warm-up at most; the slowest call measured took 0.3 s.
MEASURE_TIMEOUT_S = 60.0


class Rivals:
    """The children that run. One that fails is stopped, told of on stderr, and missing from then on."""

    def __init__(self, pythons: dict[str, str], closing: ExitStack, bar: Bar) -> None:
        self.missing: dict[str, str] = {}
        self.children: dict[str, Child] = {}
        for name, python in pythons.items():
            bar.show(f"starting {name}")
            try:
                self.children[name] = closing.enter_context(Child(name, Path(python), "replay_worker", name))
            except PeerFailed as error:
                self._drop(name, error)

    @property
    def versions(self) -> dict[str, str]:
        return {name: child.greeting["version"] for name, child in self.children.items() if name != "numpy"}

    def ask(self, name: str, message: dict[str, Any], timeout_s: float) -> dict[str, Any] | None:
        """The answer, or None when it failed now or before."""
        if name not in self.children:
            return None
        try:
            return self.children[name].ask(message, timeout_s)
        except PeerFailed as error:
            self._drop(name, error)
            return None

    def open(self, name: str, stage: Stage, *, small: bool = False) -> float | None:
        """Bytes of the filled buffer."""
        order = {"op": "open", "obs": stage.obs.name, "capacity": stage.capacity, "lanes": stage.num_envs}
        order.update(prioritized=stage.op == "prioritized", small=small)
        answer = self.ask(name, order, OPEN_TIMEOUT_S + stage.peer_bytes / OPEN_BYTES_PER_S)
        return None if answer is None else float(answer["bytes"])

    def close(self, name: str) -> None:
        self.ask(name, {"op": "close"}, MEASURE_TIMEOUT_S)

    def measure(self, name: str, stage: Stage, batch: int, seconds: float) -> float:
        order = {"op": stage.op, "batch": batch, "seconds": seconds}
        answer = self.ask(name, order, MEASURE_TIMEOUT_S + 3 * seconds)
        return math.nan if answer is None else stage.figure(answer["us"], batch)

    def _drop(self, name: str, error: PeerFailed) -> None:
        print(f"{error}\n{name} is left out.", file=sys.stderr)
        self.missing[name] = str(error).splitlines()[0]
        child = self.children.pop(name, None)
        if child is not None:
            child.stop()
