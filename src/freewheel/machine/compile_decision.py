"""Trial: eager or compiled updates. Compiling has to repay itself in the rest of the run, and its result has to be faster."""

from __future__ import annotations

import statistics
from collections import deque

from freewheel.machine import cache, trial
from freewheel.machine.trial import Choice

# What compiling takes on a core of its own, and what it saves at least; both are guesses that lean towards not compiling.
COMPILE_S = 60.0
SAVES_SHARE = 0.4
# Looking for an update that was compiled before takes some seconds of another core.
FIND_S = 10.0
# The first updates are slower than those that follow: nothing is decided by them.
LOOK_AFTER = 50
# Compiled updates have to be this much faster than eager ones.
LEAST_GAIN = 1.02
# Calls of each kind that are compared, and those after the switch that are not.
COMPARED, SETTLING = 31, 5


def known_gain(key: str) -> float | None:
    """How many times as fast compiled updates were on this machine, if they were compared."""
    gain = cache.recall(key).get("compiled")
    return gain if isinstance(gain, float) and gain > 0 else None


class Decision:
    """Made once, as soon as the time of an update is known.

    `wants` is then True to compile, False to use only what was compiled before, and stays None when it is too late even for that.
    """

    def __init__(self, gain: float | None = None) -> None:
        """`gain` is the known gain of this network on this machine."""
        self.wants: bool | None = None
        self._gain = gain
        self._is_made = False

    def ask(self, left: float, updates: int, update_s: float) -> str | None:
        """The decision and its reason, when it is made; None before and after. So many updates are `left` to make."""
        if self._is_made or updates < LOOK_AFTER:
            return None
        self._is_made = True
        if self._gain is not None and self._gain < LEAST_GAIN:
            return f"Not compiling the update: on this machine it was {self._gain:.2f} times as fast as eager (remembered)."
        left_s = left * update_s
        saves_share = SAVES_SHARE if self._gain is None else 1 - 1 / self._gain
        saves = f"would save {left_s * saves_share:.0f} s of the {left_s:.0f} s left"
        if left_s * saves_share > COMPILE_S * (1 - saves_share):
            self.wants = True
            return f"Compiling the update beside the training: it {saves}."
        unless = ""
        if left_s > FIND_S:
            self.wants, unless = False, ", unless an earlier run did"
        return f"Not compiling the update{unless}: it takes about {COMPILE_S:.0f} s and {saves}. Force it with --compile on."


class Comparison:
    """Compares compiled updates with the eager ones before them, on the same machine under the same load."""

    def __init__(self, key: str) -> None:
        self._key = key  # under which the gain is remembered
        self._eager: deque[float] = deque(maxlen=COMPARED)
        self._compiled: list[float] = []

    def add(self, update_s: float, is_compiled: bool) -> Choice[str] | None:
        """Eager or compiled, when the times of both are known; None before and after."""
        if len(self._compiled) == SETTLING + COMPARED:  # they were compared
            return None
        if not is_compiled:
            self._eager.append(update_s)
            return None
        self._compiled.append(update_s)
        # With too few eager updates it was compiled from the start, or nearly so.
        if len(self._compiled) < SETTLING + COMPARED or len(self._eager) < COMPARED:
            return None
        times = {"eager": list(self._eager), "compiled": self._compiled[SETTLING:]}
        seconds = {name: statistics.median(each) for name, each in times.items()}
        cache.remember(self._key, {"compiled": seconds["eager"] / seconds["compiled"]})
        chosen = trial.choose(times, LEAST_GAIN, statistics.median)
        does = "Keeping the compiled update" if chosen == "compiled" else "Going back to eager updates"
        said = f"compiled {1e3 * seconds['compiled']:.3g} ms, eager {1e3 * seconds['eager']:.3g} ms"
        return Choice(chosen, f"{does}: {said}.", times)
