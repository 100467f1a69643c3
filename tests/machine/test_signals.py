"""What a signal does to a run: the first asks, the second does not."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable
from typing import Any

import pytest

from freewheel.machine import signals as stopping
from freewheel.machine.signals import signals_stop


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(stopping, "time", made)
    return made


def handler() -> Callable[[int, Any], Any]:
    found = signal.getsignal(signal.SIGINT)
    assert callable(found)
    return found


def test_a_second_ctrl_c_does_not_ask(clock: Clock) -> None:
    stops: list[int] = []
    with signals_stop(lambda: stops.append(1)) as seen:
        handler()(signal.SIGINT, None)
        assert (seen.received, stops) == (signal.SIGINT, [1])
        clock.now += 0.2
        with pytest.raises(KeyboardInterrupt):
            handler()(signal.SIGINT, None)


def test_a_signal_to_the_process_and_its_group_is_one(clock: Clock) -> None:
    stops: list[int] = []
    with signals_stop(lambda: stops.append(1)) as seen:
        handler()(signal.SIGINT, None)
        clock.now += 0.01
        handler()(signal.SIGINT, None)
        assert (seen.received, stops) == (signal.SIGINT, [1])


def test_sigterm_after_ctrl_c_changes_nothing(clock: Clock) -> None:
    with signals_stop(lambda: None) as seen:
        handler()(signal.SIGINT, None)
        clock.now += 5
        handler()(signal.SIGTERM, None)
        assert seen.received == signal.SIGINT


def test_an_interrupt_that_python_dropped_is_raised_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a finalizer: Python tells of the exception and goes on."""

    class Dropped:
        def __del__(self) -> None:
            with contextlib.suppress(KeyboardInterrupt):
                handler()(signal.SIGINT, None)

    monkeypatch.setattr(stopping, "_interrupts", [])
    before = signal.getsignal(signal.SIGINT)
    try:
        stopping.remember_interrupts()
        Dropped()
        with pytest.raises(KeyboardInterrupt), signals_stop(lambda: None):
            raise AssertionError("the run began")
        with pytest.raises(KeyboardInterrupt):
            handler()(signal.SIGINT, None)
    finally:
        signal.signal(signal.SIGINT, before)
