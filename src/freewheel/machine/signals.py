"""Ctrl-C, SIGTERM and a closed terminal (SIGHUP) ask the run to stop; a second Ctrl-C ends it at once."""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

from freewheel.machine.process import ASKS_TO_END, leave, sweep_own

# A program may signal a process and its group at the same time; nobody presses Ctrl-C twice this fast.
AT_ONCE_S = 0.1
# A command ends this long after a second Ctrl-C, whatever still runs in it.
SECOND_S = 1.5


class Signals:
    """Which signal came, if any."""

    received: int | None = None


@contextmanager
def ends_at_once() -> Iterator[None]:
    """Ctrl-C ends the process at once. For imports, in which it may be lost or abort inside a library."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, lambda number, frame: os._exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


_interrupts: list[int] = []  # signals that `remember_interrupts` saw
_first_s: list[float] = []  # when the first Ctrl-C of a command came


def remember_interrupts() -> None:
    """Ctrl-C raises KeyboardInterrupt as ever. Where Python drops that, in a finalizer or a callback from C, `signals_stop` raises it again."""

    def handler(number: int, frame: FrameType | None) -> None:
        _interrupts.append(number)
        _count_interrupt()
        raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)
        _first_s[:] = [math.inf]


def _count_interrupt() -> None:
    """Of a command. After the second Ctrl-C it ends, even if the user's code swallows the KeyboardInterrupt."""
    now = time.monotonic()
    if not _first_s:
        return  # the process is the user's own
    if now > _first_s[0] + AT_ONCE_S:
        leave_within(SECOND_S, 128 + signal.SIGINT)
    _first_s[0] = min(_first_s[0], now)


def leave_within(seconds: float, code: int) -> None:
    """This process ends by then with the programs that it started, whatever still runs in it."""

    def leave_now() -> None:
        try:
            sweep_own()
        finally:
            os._exit(code)

    timer = threading.Timer(seconds, leave_now)
    timer.daemon = True
    timer.start()


def end(code: int, within_s: float) -> NoReturn:
    """The end of a command. Threads and exit functions of the user's code get so long; then it ends without them."""
    leave_within(within_s, code)
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    try:
        interpreter: Any = threading
        interpreter._shutdown()  # as the interpreter does when a program returns
        atexit._run_exitfuncs()
    finally:
        sweep_own()
        leave(code)


def was_interrupted() -> bool:
    """Whether `remember_interrupts` saw Ctrl-C."""
    return bool(_interrupts)


def interrupt() -> None:
    """For `signals_stop` where nothing has to be kept: the first signal interrupts what runs."""
    raise KeyboardInterrupt


@contextmanager
def signals_stop(stop: Callable[[], None]) -> Iterator[Signals]:
    """Calls `stop` at the first signal, which interrupts nothing. Has no effect outside the main thread."""
    seen = Signals()
    if threading.current_thread() is not threading.main_thread():
        yield seen
        return

    if was_interrupted():
        raise KeyboardInterrupt
    first_s = 0.0

    def handler(number: int, frame: FrameType | None) -> None:
        nonlocal first_s
        if number == signal.SIGINT:
            _count_interrupt()
        if seen.received is not None:
            if number == signal.SIGINT and time.monotonic() - first_s > AT_ONCE_S:
                raise KeyboardInterrupt
            return
        first_s = time.monotonic()
        seen.received = number
        stop()

    # A command below nohup goes on when the terminal is closed.
    numbers = [
        number for number in ASKS_TO_END if signal.getsignal(number) != signal.SIG_IGN or number != signal.SIGHUP
    ]
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield seen
    finally:
        for number, old in before.items():
            signal.signal(number, old)
