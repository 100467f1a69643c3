"""Settings that cannot work are refused before anything is measured."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path

from freewheel.errors import ConfigError


def check_rounds(rounds: int, seconds: float) -> None:
    if rounds < 1:
        raise ConfigError(f"--rounds {rounds} must be at least 1.")
    if not 0 < seconds <= 60:
        raise ConfigError(f"--seconds {seconds} must be above 0 and at most 60.")


def check_training(seconds: float, warm_s: float, rounds: int) -> None:
    check_rounds(rounds, seconds)
    if not 0 <= warm_s <= 60:
        raise ConfigError(f"--warm-s {warm_s} must be between 0 and 60.")


def check_numbers(**flags: Sequence[int]) -> None:
    for flag, numbers in flags.items():
        if not numbers or min(numbers) < 1:
            raise ConfigError(f"--{flag} {','.join(map(str, numbers))} must be one or more positive numbers.")


def check_plot(path: Path) -> None:
    """Before an hour of measuring, not after it."""
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"--plot {path}: there is no folder {path.absolute().parent}. Make it first.")


def check_names(names: Sequence[str], known: Iterable[str], what: str) -> list[str]:
    """The names in the order given, once each; `none` alone gives none of them; an unknown one is refused."""
    known = list(known)
    if list(names) == ["none"]:
        return []
    for name in names:
        if name not in known:
            raise ConfigError(f"unknown {what} {name!r}.{near(name, known)} There are: {', '.join(known)}.")
    return list(dict.fromkeys(names))


def near(name: str, known: Iterable[str]) -> str:
    """` Did you mean 'cpprb'?` or nothing."""
    close = difflib.get_close_matches(name, list(known), n=2, cutoff=0.5)
    return f" Did you mean {' or '.join(repr(match) for match in close)}?" if close else ""
