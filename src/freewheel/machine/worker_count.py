"""Trial: one process or several for each gradient. Not cached: it depends on the other processes of the run."""

from __future__ import annotations

from collections.abc import Callable

from freewheel.machine import trial
from freewheel.machine.trial import Choice

# A shorter update is not worth sharing: several workers are not even tried.
LEAST_S = 5e-3
# Training stops meanwhile, so a round takes at most this long, or one gradient.
ROUND_S = 0.1
# A second worker takes a core from another process, so it must be this many times as fast.
LEAST_GAIN = 1.15


def choose(workers: int, alone: Callable[[], object], shared: Callable[[], object], update_s: float) -> Choice[int]:
    """1 or `workers`, by the time of one gradient computed `alone` and `shared`."""
    times = trial.measure({1: alone, workers: shared}, max(min(int(ROUND_S / max(update_s, 1e-9)), 10), 1))
    count = trial.choose(times, LEAST_GAIN)
    said = ", ".join(f"{1e3 * min(each):.2g} ms in {_processes(n)}" for n, each in times.items())
    return Choice(count, f"Computing each gradient in {_processes(count)} ({said}).")


def _processes(count: int) -> str:
    return "one process" if count == 1 else f"{count} processes"
