"""The progress line on standard error. The training loop drives it: no thread, and no control codes without a terminal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

REFRESH_S = 0.2
PLAIN_S = 10.0
LEAST_S = 1.0  # between two plain lines
# Recent rates weigh more: a change of speed shows within a few refreshes, a single slow refresh hardly does.
RATE_SHARE = 0.3
WIDE = 120


def number(value: float) -> str:
    """One digit after the point; three digits of a small number."""
    return f"{value:,.1f}" if abs(value) >= 10 or not value else f"{value:.3g}"


class Progress:
    """Shows steps, return, loss, epsilon, steps/s and ratio; call `update` as often as you like.

    On a terminal, one line is redrawn at most five times a second. Elsewhere a plain line comes every ten seconds and at every
    tenth of the steps. `is_quiet` shows notes only.
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
        """Shows where the run is, if a refresh is due; otherwise costs next to nothing."""
        if not self.is_due(steps):
            return
        now = self._clock()
        self._count_rate(steps, now)
        self._due_s = now + self._period_s
        self._next_tenth = self._tenth_after(steps)
        metrics = {
            "return {:.4g}": ret,
            "loss {:.3g}": loss,
            "epsilon {:.3f}": epsilon,
            f"{{:,.0f}} {self._unit}/s": self._rate,
            "ratio {:.3g}": ratio,
        }
        self._text = "  ".join(text.format(value) for text, value in metrics.items() if value is not None)
        self._show(steps)

    def is_due(self, steps: int) -> bool:
        """True if `update` would show something: ask first if the metrics take time to compute."""
        if self._is_silent:
            return False
        now = self._clock()
        return now >= self._due_s or (self._bar is None and steps >= self._next_tenth and now - self._last_s >= LEAST_S)

    def note(self, text: str) -> None:
        """Prints a line above the progress line, even if no progress is shown."""
        with self._without_terminal():
            if self._bar is None:
                self._print(text)
            else:
                self._bar.console.print(text, markup=False, highlight=False)

    def close(self, steps: int | None = None) -> None:
        """Shows where the run ended, with the metrics of the last update; safe to call twice."""
        if self._is_silent and self._bar is None:
            return
        if steps is not None and steps != self._shown_steps:
            self._show(steps)
        if self._bar is not None:
            with self._without_terminal():
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

    def _show(self, steps: int) -> None:
        self._shown_steps = steps
        with self._without_terminal():
            if self._bar is None:
                share = 100 * steps // self._total
                self._print(f"{self._title}  {steps:,}/{self._total:,} {self._unit} ({share} %)  {self._text}".rstrip())
            else:
                self._bar.update(self._task, completed=steps, text=self._text)
                self._bar.refresh()

    def _print(self, line: str) -> None:
        self._stream.write(line + "\n")
        self._stream.flush()

    @contextmanager
    def _without_terminal(self) -> Iterator[None]:
        """If the terminal is gone, the run goes on silently."""
        try:
            yield
        except (OSError, ValueError):
            self._is_silent = True

    def _start_bar(self, first_step: int) -> None:
        from rich import progress
        from rich.console import Console

        class Screen(Console):
            def on_broken_pipe(self) -> None:
                self.quiet = True  # rich would end the process

        console = Screen(file=self._stream)
        # The metrics take about 80 columns: on a narrow terminal they matter more than title and bar.
        wide = [progress.TextColumn("{task.description}", markup=False), progress.BarColumn(bar_width=20)]
        self._bar = progress.Progress(
            *(wide if console.width >= WIDE else []),
            progress.TextColumn("{task.completed:,.0f}/{task.total:,.0f}", markup=False),
            progress.TextColumn("{task.fields[text]}", markup=False),
            console=console,
            auto_refresh=False,  # it would start a thread
            # What an env prints goes above the line. A standard output that is a file or a pipe stays as it is.
            redirect_stdout=sys.stdout.isatty(),
            redirect_stderr=sys.stderr.isatty(),
        )
        self._task = self._bar.add_task(self._title, total=self._total, completed=first_step, text="")
        with self._without_terminal():
            self._bar.start()
