"""Trial: eager or compiled updates. Compiling must save more time than it takes, and the result must be faster."""

from __future__ import annotations

import statistics
from collections import deque

from freewheel.machine import cache, trial
from freewheel.machine.trial import Choice

# Seconds of compiling on its own core, and the share of time that it saves; both guesses lean towards not compiling.
COMPILE_S = 60.0
SAVES_SHARE = 0.4
# Looking for an update that was compiled earlier takes another core for some seconds.
FIND_S = 10.0
# The first updates are slower than later ones and do not count.
LOOK_AFTER = 50
# Compiled updates must be this many times as fast as eager ones.
LEAST_GAIN = 1.02
# Calls of each kind to compare, and calls right after the switch that do not count.
COMPARED, SETTLING = 31, 5


def known_gain(key: str) -> float | None:
    """How many times as fast as eager ones compiled updates are on this machine, if they were compared."""
    gain = cache.recall(key).get("compiled")
    return gain if trial.is_positive(gain) else None


def decide(left_s: float, gain: float | None) -> Choice[bool | None]:
    """True to compile, False to use only what was compiled earlier, None if it is too late even for that.

    `left_s` are the seconds of updates to come. `gain` is the known gain of this network on this machine.
    """
    if gain is not None and gain < LEAST_GAIN:
        return Choice(
            None,
            f"Not compiling the update: on this machine it was {gain:.2f} times as fast as eager (measured earlier).",
        )
    saves_share = SAVES_SHARE if gain is None else 1 - 1 / gain
    saves = f"would save {left_s * saves_share:.0f} s of the {left_s:.0f} s left"
    if left_s * saves_share > COMPILE_S * (1 - saves_share):
        return Choice(True, f"Compiling the update while training goes on: it {saves}.")
    wants, unless = (False, ", unless an earlier run did") if left_s > FIND_S else (None, "")
    costs = f"it takes about {COMPILE_S:.0f} s and {saves}"
    return Choice(wants, f"Not compiling the update{unless}: {costs}. Force it with --compile on.")


class Comparison:
    """Compares compiled updates with the eager ones before them, under the same load."""

    def __init__(self, key: str) -> None:
        self._key = key  # of the gain in the cache
        self._eager: deque[float] = deque(maxlen=COMPARED)
        self._compiled: list[float] = []

    def add(self, update_s: float, is_compiled: bool) -> Choice[str] | None:
        """Eager or compiled when the times of both are known, None before and after."""
        if len(self._compiled) == SETTLING + COMPARED:  # already compared
            return None
        if not is_compiled:
            self._eager.append(update_s)
            return None
        self._compiled.append(update_s)
        # With few eager updates, it was compiled almost from the start.
        if len(self._compiled) < SETTLING + COMPARED or len(self._eager) < COMPARED:
            return None
        times = {"eager": list(self._eager), "compiled": self._compiled[SETTLING:]}
        seconds = {name: statistics.median(each) for name, each in times.items()}
        cache.remember(self._key, {"compiled": seconds["eager"] / seconds["compiled"]})
        chosen = trial.choose(times, LEAST_GAIN, statistics.median)
        does = "Keeping the compiled update" if chosen == "compiled" else "Going back to eager updates"
        said = f"compiled {1e3 * seconds['compiled']:.3g} ms, eager {1e3 * seconds['eager']:.3g} ms"
        return Choice(chosen, f"{does}: {said}.")
