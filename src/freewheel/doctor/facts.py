"""A fact that was found about the machine or an env: how it stands, and what to do about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

State = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class Fact:
    """One line of the doctor. A problem is what `train` would fail on; each that is not ok says the cure.

    `shown` is for people, `value` for programs, `trace` is a traceback or what the env printed last.
    """

    group: str
    name: str
    shown: str
    value: Any = None
    state: State = "ok"
    cure: str = ""
    trace: str = ""

    def record(self) -> dict[str, Any]:
        """As it stands in JSON."""
        return asdict(self)
