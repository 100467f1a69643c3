"""F29: whatever the settings, a run starts or is refused with an error of ours. A failure names its case, which `case(seed)` makes again."""

from __future__ import annotations

import contextlib
import resource
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fault_runs import TIMES
from random_settings import Case, case

import freewheel
from freewheel.errors import ConfigError, Diverged, EnvError
from freewheel.memory import segment

COUNT, PART = 50 if TIMES == 1 else 100 * TIMES, 10
MACHINE_BYTES = 500_000_000  # what the forecasts believe to have
DATA_BYTES = 2_000_000_000  # beyond it an allocation fails: a forecast was missing
MOST_STEPS, MOST_S, HANGS_S = 40, 2.0, 60
outcomes: Counter[str] = Counter()


class Hung(BaseException):
    """A case that took too long. No `except Exception` may catch it."""


class Short(freewheel.Callback):
    """Ends a run after some steps, or after a while."""

    def __init__(self) -> None:
        self.until_s = time.monotonic() + MOST_S

    def on_step(self, moment: Any) -> None:
        if moment.step >= MOST_STEPS or time.monotonic() > self.until_s:
            moment.stop()


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """A small machine, on which a case has HANGS_S."""

    def hung(number: int, frame: Any) -> None:
        raise Hung

    pages = int(Path("/proc/self/statm").read_text().split()[5])
    limits, machine = resource.getrlimit(resource.RLIMIT_DATA), segment._machine_bytes
    before = signal.signal(signal.SIGALRM, hung)
    of_test_s, _ = signal.setitimer(signal.ITIMER_REAL, HANGS_S)
    try:
        segment._machine_bytes = lambda root: MACHINE_BYTES
        resource.setrlimit(resource.RLIMIT_DATA, (pages * resource.getpagesize() + DATA_BYTES, limits[1]))
        yield
    finally:
        left_s, _ = signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, max(of_test_s - (HANGS_S - left_s), 0.1) if of_test_s else 0)
        resource.setrlimit(resource.RLIMIT_DATA, limits)
        segment._machine_bytes = machine


def outcome_of(one: Case) -> str:
    """`run`, or the class of the error that refused it."""
    with bounded():
        try:
            freewheel.train(one.env, preset="none", settings=one.settings, callbacks=[Short()], is_quiet=True)
        except (ConfigError, EnvError, Diverged) as error:
            return type(error).__name__
    return "run"


@pytest.mark.parametrize("part", range(COUNT // PART))
def test_f29_random_settings_run_or_are_refused(part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for seed in range(part * PART, (part + 1) * PART):
        one = case(seed)
        try:
            outcomes[outcome_of(one)] += 1
        except BaseException as error:
            raise AssertionError(f"{type(error).__name__} of {one}") from error


def test_f29_many_of_the_random_settings_are_possible() -> None:
    """Or the test above would only see refusals. Runs after it."""
    if sum(outcomes.values()) == COUNT:
        assert outcomes["run"] > COUNT / 10, outcomes
        assert outcomes["ConfigError"] > COUNT / 5, outcomes
