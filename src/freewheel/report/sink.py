"""The sink: one thread writes all logs, so that logging never waits for a disk."""

from __future__ import annotations

import atexit
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, SupportsFloat

from freewheel.report.episodes import Episode

BATCH_ROWS, BATCH_S = 1000, 1.0
# About a minute of logging at a thousand rows per second, and a few megabytes.
MOST_WAITING = 50_000


@dataclass(frozen=True, slots=True)
class Metrics:
    """Metrics by name, at a step of the run."""

    step: int
    values: dict[str, float]


@dataclass(frozen=True, slots=True)
class Record:
    """A logged row, and when it was logged (Unix seconds)."""

    time_s: float
    row: Metrics | Episode


class Log(Protocol):
    """A destination of records. The sink's thread makes all calls; an error ends this log and nothing else."""

    name: str

    def open(self) -> None: ...
    def write(self, records: Sequence[Record]) -> None: ...
    def close(self) -> None: ...


class Sink:
    """Hands records to logs in batches of 1,000 rows or of one second, whichever comes first.

    `metrics` and `episodes` never block: if the logs cannot keep up, records are dropped and counted; so are those that a log which
    failed does not get. `close` writes all accepted records, also when the interpreter ends by an exception.
    """

    def __init__(self, logs: Sequence[Log], most_waiting: int = MOST_WAITING) -> None:
        self._num_late = 0
        self._logs = list(logs)
        self._missed: dict[str, int] = {}  # by logs that failed
        self._most_waiting = most_waiting
        self._waiting: deque[Record] = deque()
        self._is_closing = False
        # The lock is held for a few microseconds, never while a log is written. It is reentrant: a signal handler may log.
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="fw-sink", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def metrics(self, step: int, values: Mapping[str, SupportsFloat]) -> None:
        # Floats are made here: a tensor that is updated in place would have another value when it is written.
        self._put([Metrics(step, {name: float(value) for name, value in values.items()})])

    def episodes(self, episodes: Sequence[Episode]) -> None:
        self._put(episodes)

    @property
    def num_dropped(self) -> int:
        return self._num_late + sum(self._missed.values())

    def close(self, timeout_s: float = 30.0) -> None:
        """Writes the waiting records and ends the thread; safe to call twice."""
        with self._changed:
            was_closing, self._is_closing = self._is_closing, True
            self._changed.notify()
        self._thread.join(timeout_s)
        if was_closing:
            return
        atexit.unregister(self.close)
        if self._thread.is_alive():
            say(f"the logs did not finish within {timeout_s:g} s; {len(self._waiting):,} rows were not written.")
        if self._num_late:
            say(f"dropped {self._num_late:,} rows: the logs could not keep up. Log less often, or to a faster disk.")
        for name, count in self._missed.items():
            say(f"{name} misses {count:,} records.")

    def __enter__(self) -> Sink:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _put(self, rows: Sequence[Metrics | Episode]) -> None:
        now = time.time()
        with self._changed:
            for row in rows:
                if self._is_closing or len(self._waiting) >= self._most_waiting:
                    self._num_late += 1
                    continue
                self._waiting.append(Record(now, row))
                # The thread waits for these two counts; waking it for every row would slow training down.
                if len(self._waiting) in (1, BATCH_ROWS):
                    self._changed.notify()

    def _run(self) -> None:
        # Opened at once: importing a log's library takes seconds, and is impossible while the interpreter ends.
        self._each("open")
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closing)
                self._changed.wait_for(lambda: len(self._waiting) >= BATCH_ROWS or self._is_closing, BATCH_S)
                records = list(self._waiting)
                self._waiting.clear()
                is_last = self._is_closing
            if records:
                self._each("write", records)
                for name in self._missed:
                    self._missed[name] += len(records)
            if is_last:
                self._each("close")
                return

    def _each(self, method: str, *given: Sequence[Record]) -> None:
        for log in list(self._logs):
            try:
                getattr(log, method)(*given)
            except Exception as error:
                self._logs.remove(log)
                self._missed[log.name] = 0
                with suppress(Exception):  # the first error is the one to report
                    log.close()
                why = error.strerror if isinstance(error, OSError) and error.strerror else repr(error)
                say(f"{log.name} cannot be written: {why}. This log ends here; training goes on.")


def say(line: str) -> None:
    """Prints a line for the user. A closed standard error must not end the run."""
    try:
        print(f"log: {line}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        return
