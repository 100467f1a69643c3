"""The progress line on standard error, driven by the training loop: no thread, and no control codes without a terminal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TextIO

REFRESH_S = 0.2
PLAIN_S = 10.0
LEAST_S = 1.0  # between two plain lines
# Younger rates weigh more: a change of speed shows within a few refreshes, a single slow one hardly.
RATE_SHARE = 0.3
WIDE = 120


class Progress:
    """Shows steps, return, loss, epsilon, steps/s and ratio; call `update` as often as you like.

    On a terminal one line is redrawn at most five times a second. Elsewhere a plain line comes every ten seconds and at every
    tenth of the way. `is_quiet` shows nothing at all.
    """

    def __init__(
        self,
        total_steps: int,
        title: str = "train",
        is_quiet: bool = False,
        first_step: int = 0,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        unit: str = "steps",
    ) -> None:
        self._total = max(total_steps, 1)
        self._title = title
        self._unit = unit
        self._clock = clock
        self._stream = sys.stderr if stream is None else stream
        self._is_silent = is_quiet
        self._rate: float | None = None
        self._last_steps = self._shown_steps = first_step
        self._last_s = clock()
        self._bar: Any = None
        self._task: Any = None
        self._text = ""
        has_terminal = not is_quiet and self._stream.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")
        self._period_s = REFRESH_S if has_terminal else PLAIN_S
        self._due_s = self._last_s + self._period_s
        self._next_tenth = self._tenth_after(first_step)
        if has_terminal:
            self._start_bar(first_step)

    def update(
        self,
        steps: int,
        ret: float | None = None,
        loss: float | None = None,
        epsilon: float | None = None,
        ratio: float | None = None,
    ) -> None:
        """Says where the run is; costs next to nothing while no refresh is due."""
        if self._is_silent or not self.is_due(steps):
            return
        now = self._clock()
        self._count_rate(steps, now)
        self._due_s = now + self._period_s
        self._next_tenth = self._tenth_after(steps)
        self._text = self._figures(ret, loss, epsilon, ratio)
        self._show(steps)

    def is_due(self, steps: int) -> bool:
        """True if `update` would show something: ask first where the figures take time to find."""
        if self._is_silent:
            return False
        now = self._clock()
        return now >= self._due_s or (self._bar is None and steps >= self._next_tenth and now - self._last_s >= LEAST_S)

    def note(self, text: str) -> None:
        """A line that stays, above the progress line; told also when no progress is shown."""
        if self._bar is None:
            self._write(text)
            return
        try:
            self._bar.console.print(text, markup=False, highlight=False)
        except (OSError, ValueError):
            self._is_silent = True

    def close(self, steps: int | None = None) -> None:
        """Shows where the run ended, with the figures of the last update; safe twice."""
        if self._is_silent and self._bar is None:
            return
        if steps is not None and steps != self._shown_steps:
            self._show(steps)
        if self._bar is not None:
            with suppress(OSError, ValueError):
                self._bar.stop()
            self._bar = None
        self._is_silent = True

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _tenth_after(self, steps: int) -> float:
        return (steps * 10 // self._total + 1) * self._total / 10

    def _count_rate(self, steps: int, now: float) -> None:
        seconds = now - self._last_s
        if seconds <= 0:
            return
        rate = (steps - self._last_steps) / seconds
        self._rate = rate if self._rate is None else self._rate + RATE_SHARE * (rate - self._rate)
        self._last_steps, self._last_s = steps, now

    def _figures(self, ret: float | None, loss: float | None, epsilon: float | None, ratio: float | None) -> str:
        parts = []
        if ret is not None:
            parts.append(f"return {ret:.4g}")
        if loss is not None:
            parts.append(f"loss {loss:.3g}")
        if epsilon is not None:
            parts.append(f"epsilon {epsilon:.3f}")
        if self._rate is not None:
            parts.append(f"{self._rate:,.0f} {self._unit}/s")
        if ratio is not None:
            parts.append(f"ratio {ratio:.3g}")
        return "  ".join(parts)

    def _show(self, steps: int) -> None:
        self._shown_steps = steps
        if self._bar is None:
            share = 100 * steps // self._total
            self._write(f"{self._title}  {steps:,}/{self._total:,} {self._unit} ({share} %)  {self._text}".rstrip())
            return
        try:
            self._bar.update(self._task, completed=steps, text=self._text)
            self._bar.refresh()
        except (OSError, ValueError):
            self._is_silent = True  # the terminal is gone; the run goes on without it

    def _write(self, line: str) -> None:
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            self._is_silent = True

    def _start_bar(self, first_step: int) -> None:
        from rich import progress
        from rich.console import Console

        class Screen(Console):
            def on_broken_pipe(self) -> None:
                self.quiet = True  # the library would end the process

        console = Screen(file=self._stream)
        # The figures take some 80 columns: on a narrow terminal they matter more than title and bar.
        wide = [progress.TextColumn("{task.description}", markup=False), progress.BarColumn(bar_width=20)]
        self._bar = progress.Progress(
            *(wide if console.width >= WIDE else []),
            progress.TextColumn("{task.completed:,.0f}/{task.total:,.0f}", markup=False),
            progress.TextColumn("{task.fields[text]}", markup=False),
            console=console,
            auto_refresh=False,  # it would start a thread
            # What an env prints goes above the line; a standard output that is a file or a pipe is left alone.
            redirect_stdout=sys.stdout.isatty(),
            redirect_stderr=sys.stderr.isatty(),
        )
        self._task = self._bar.add_task(self._title, total=self._total, completed=first_step, text="")
        try:
            self._bar.start()
        except (OSError, ValueError):
            self._is_silent = True
