"""Measures one case of the speed gate with the freewheel of its interpreter; `speed_turns.py` says what its folder is for."""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from speed_cases import CASES, ENDLESS, RENAMED, SpeedCase
from speed_turns import PAUSED, RESULT, WARM

import freewheel

PR_SET_PDEATHSIG = 1


class Meter(freewheel.Callback):
    """Steps and updates in a window that opens `warm_s` after training is under way, and closes after `seconds`.

    It looks where both counts are of one moment. In the sequential runtime that is after a turn of the actor, with free-running
    roles when updates were counted, and with rollouts when one was just learned from.
    """

    def __init__(
        self, case: SpeedCase, warm_s: float, seconds: float, clock: Callable[[], float], mark: Callable[[str], None]
    ) -> None:
        self._warm_s, self._seconds, self._clock, self._mark = warm_s, seconds, clock, mark
        self._least = case.least_updates
        self._by_step = case.settings["runtime"] == "sequential" and (case.algo == "dqn" or not case.least_updates)
        self._ready_s: float | None = None
        self._opened: tuple[float, int, int] | None = None
        self.is_over = False

    def on_step(self, moment: freewheel.Moment) -> None:
        if self._by_step:
            self._look(moment)

    def on_update(self, moment: freewheel.Moment) -> None:
        if not self._by_step:
            self._look(moment)

    def _look(self, moment: freewheel.Moment) -> None:
        now = self._clock()
        if self._ready_s is None:
            if moment.updates >= self._least:
                self._ready_s = now
        elif self._opened is None:
            if now - self._ready_s >= self._warm_s:
                self._opened = now, moment.step, moment.updates
                self._mark("")
        elif not self.is_over and now - self._opened[0] >= self._seconds:
            self.is_over = True
            seconds, steps, updates = now - self._opened[0], moment.step, moment.updates
            speeds = {"steps": (steps - self._opened[1]) / seconds, "updates": (updates - self._opened[2]) / seconds}
            self._mark(json.dumps({**speeds, "seconds": seconds, "package": os.path.dirname(freewheel.__file__)}))
            moment.stop()


class Marks:
    """The files by which the gate sees how far this process has got."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with (folder / PAUSED).open("rb") as file:
            self._memory = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)

    def running_s(self) -> float:
        """A clock that stands still while this process does."""
        paused: float = struct.unpack("d", self._memory)[0]
        return time.perf_counter() - paused

    def mark(self, result: str) -> None:
        """The first is that the window opens, with nothing to say; the second has the figures."""
        name = RESULT if result else WARM
        (self._folder / f"{name}.new").write_text(result)
        os.rename(self._folder / f"{name}.new", self._folder / name)  # whole when it is seen


def die_with_parent() -> None:
    """A gate that was killed leaves nobody behind who stands still."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def measure(case: SpeedCase, meter: Meter, names: Mapping[str, str]) -> None:
    settings = {names.get(name, name): value for name, value in case.settings.items()}
    with tempfile.TemporaryDirectory(prefix="freewheel-gate-") as folder:
        freewheel.train(
            case.env,
            algo=case.algo,
            steps=ENDLESS,
            preset="none",
            settings={**settings, "log.folder": folder},
            callbacks=[meter],
            is_quiet=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--current", action="store_true")
    parser.add_argument("--warm-s", type=float, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--clock", choices=("wall", "cpu"), required=True)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    die_with_parent()
    marks, case = Marks(given.folder), CASES[given.case]
    clock = time.process_time if given.clock == "cpu" else marks.running_s
    if given.current:
        case = replace(case, settings={**case.settings, **case.added})
    measure(case, Meter(case, given.warm_s, given.seconds, clock, marks.mark), RENAMED if given.current else {})


if __name__ == "__main__":
    main()
