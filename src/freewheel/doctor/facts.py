"""A fact about the machine or an env: its state, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

MACHINE, SOFTWARE, ENV = "machine", "software", "env"
State = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class Fact:
    """One line of the doctor. `train` would fail on a problem; `cure` says what to do about a problem or a warning.

    `shown` is for people, `value` for programs; `trace` is a traceback, or the last lines that the env printed.
    """

    group: str
    name: str
    shown: str
    value: Any = None
    state: State = "ok"
    cure: str = ""
    trace: str = ""

    def flagged(self, is_bad: bool, cure: str, state: State = "warning") -> Fact:
        """The fact with this state and cure if it is bad, as it is otherwise."""
        return replace(self, state=state, cure=cure) if is_bad else self
