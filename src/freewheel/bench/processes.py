"""Programs that are measured beside ours, each in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from freewheel.bench.child import Child, PeerFailed, Program
from freewheel.bench.harness import Bar


class Processes:
    """The children that run. One that fails is stopped, reported on stderr, and left out from then on."""

    def __init__(self, programs: Mapping[str, Program], closing: ExitStack, bar: Bar) -> None:
        self.missing: dict[str, str] = {}
        self.children: dict[str, Child] = {}
        for name, program in programs.items():
            bar.show(f"starting {name}")
            try:
                self.children[name] = closing.enter_context(Child(name, program))
            except PeerFailed as error:
                self._drop(name, error)

    @property
    def versions(self) -> dict[str, str]:
        return {name: child.greeting["version"] for name, child in self.children.items()}

    def ask(self, name: str, message: dict[str, Any], timeout_s: float) -> dict[str, Any] | None:
        """The answer, or None when it failed now or before."""
        if name not in self.children:
            return None
        try:
            return self.children[name].ask(message, timeout_s)
        except PeerFailed as error:
            self._drop(name, error)
            return None

    def _drop(self, name: str, error: PeerFailed) -> None:
        print(f"{error}\n{name} is left out.", file=sys.stderr)
        self.missing[name] = str(error).splitlines()[0]
        child = self.children.pop(name, None)
        if child is not None:
            child.stop()
