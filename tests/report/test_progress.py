"""The progress line: redrawn on a terminal, plain lines elsewhere, and never in the way."""

from __future__ import annotations

import io
import threading

import pytest

from freewheel.report.progress import Progress


class Screen(io.StringIO):
    def __init__(self, is_terminal: bool, fails_after: int = 10**9, error: OSError | None = None) -> None:
        super().__init__()
        self._error = error
        self._is_terminal = is_terminal
        self._left = fails_after

    def isatty(self) -> bool:
        return self._is_terminal

    def write(self, text: str) -> int:
        self._left -= 1
        if self._left < 0 and self._error is not None:
            raise self._error
        return super().write(text)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def test_without_a_terminal_there_are_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    screen, clock = Screen(False), Clock()
    with Progress(1_000, "CartPole-v1 dqn", stream=screen, clock=clock) as progress:
        for steps in range(0, 1_001, 10):
            clock.now += 0.2
            progress.update(steps, ret=21.25, loss=0.0123, epsilon=0.5, ratio=0.25)
        progress.note("saved step-1000")
        progress.close(1_000)
    lines = screen.getvalue().splitlines()
    assert len(lines) == 11, "one line for each tenth, and the note"
    assert lines[0] == (
        "CartPole-v1 dqn  100/1,000 steps (10 %)  return 21.25  loss 0.0123  epsilon 0.500  45 steps/s  ratio 0.25"
    )
    assert lines[-2].startswith("CartPole-v1 dqn  1,000/1,000 steps (100 %)")
    assert "\x1b" not in screen.getvalue()
    assert "\r" not in screen.getvalue()


def test_without_a_terminal_a_fast_run_tells_once_a_second_and_at_the_end() -> None:
    screen, clock = Screen(False), Clock()
    with Progress(1_000, "evaluation", stream=screen, clock=clock, unit="episodes") as progress:
        for steps in range(0, 1_000, 10):
            clock.now += 0.025
            progress.update(steps)
        progress.close(1_000)
    lines = screen.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[-1].startswith("evaluation  1,000/1,000 episodes (100 %)")


def test_without_a_terminal_a_slow_run_tells_every_ten_seconds() -> None:
    screen, clock = Screen(False), Clock()
    progress = Progress(10**9, stream=screen, clock=clock)
    for steps in range(100):
        clock.now += 1.0
        progress.update(steps)
    assert len(screen.getvalue().splitlines()) == 10
    progress.close(100)
    assert screen.getvalue().splitlines()[-1].startswith("train  100/1,000,000,000 steps (0 %)")


def test_a_terminal_is_redrawn_at_most_five_times_a_second_without_a_thread() -> None:
    screen, clock, before = Screen(True), Clock(), threading.active_count()
    progress = Progress(1_000, "CartPole-v1", stream=screen, clock=clock)
    size, num_draws = len(screen.getvalue()), 0
    for steps in range(1_000):
        clock.now += 0.001
        progress.update(steps, ret=float(steps))
        num_draws += len(screen.getvalue()) != size
        size = len(screen.getvalue())
    assert 4 <= num_draws <= 6
    assert threading.active_count() == before
    progress.note("[bold]saved[/bold]")
    progress.close(1_000)
    progress.close()
    text = screen.getvalue()
    assert "\x1b[" in text
    assert "1,000/1,000" in text
    assert "[bold]saved[/bold]" in text
    assert text.rstrip(" ").endswith("\x1b[?25h"), "the cursor is shown again"


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    screen, clock = Screen(True), Clock()
    progress = Progress(1_000, stream=screen, clock=clock)
    clock.now += 1
    progress.update(500, ret=1.0)
    progress.close(1_000)
    assert "━" in screen.getvalue()
    assert "\x1b[3" not in screen.getvalue()


@pytest.mark.parametrize(("is_quiet", "term"), [(True, "xterm"), (False, "dumb")])
def test_quiet_and_dumb_terminals_get_no_codes(monkeypatch: pytest.MonkeyPatch, is_quiet: bool, term: str) -> None:
    monkeypatch.setenv("TERM", term)
    screen, clock = Screen(True), Clock()
    progress = Progress(100, stream=screen, clock=clock, is_quiet=is_quiet)
    for steps in range(101):
        clock.now += 1
        progress.update(steps)
    progress.note("note")
    progress.close(100)
    assert (screen.getvalue() == "note\n") == is_quiet
    assert "\x1b" not in screen.getvalue()


@pytest.mark.parametrize("error", [BrokenPipeError(32, "Broken pipe"), OSError(5, "Input/output error")])
@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_terminal_that_is_gone_does_not_end_the_run(is_terminal: bool, error: OSError) -> None:
    for fails_after in range(8):
        screen, clock = Screen(is_terminal, fails_after, error), Clock()
        progress = Progress(100, stream=screen, clock=clock)
        for steps in range(101):
            clock.now += 1
            progress.update(steps)
        progress.note("note")
        progress.close(100)


def test_a_resumed_run_starts_where_it_was() -> None:
    screen, clock = Screen(False), Clock()
    progress = Progress(1_000, stream=screen, clock=clock, first_step=500)
    clock.now += 1
    assert not progress.is_due(550)
    assert progress.is_due(600)
    progress.update(600)
    assert screen.getvalue() == "train  600/1,000 steps (60 %)  100 steps/s\n"
