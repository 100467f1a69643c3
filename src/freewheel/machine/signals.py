"""Ctrl-C and SIGTERM ask the run to stop; a second Ctrl-C ends it at once."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

# A program may signal a process and its group at the same time; nobody presses Ctrl-C twice this fast.
AT_ONCE_S = 0.1


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


def remember_interrupts() -> None:
    """Ctrl-C raises KeyboardInterrupt as ever. Where Python drops that, in a finalizer or a callback from C, `signals_stop` raises it again."""

    def handler(number: int, frame: FrameType | None) -> None:
        _interrupts.append(number)
        raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)


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
        if seen.received is not None:
            if number == signal.SIGINT and time.monotonic() - first_s > AT_ONCE_S:
                raise KeyboardInterrupt
            return
        first_s = time.monotonic()
        seen.received = number
        stop()

    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield seen
    finally:
        for number, old in before.items():
            signal.signal(number, old)
