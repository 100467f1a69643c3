"""The process that runs are forked from, for all tests here. Test modules take the fixtures as names of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_runs import Nursery, Run, assert_all_gone, kill_all


class Starter(Nursery):
    """Keeps what it started, so that a test that failed leaves nothing behind either."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: list[Run] = []

    def call(self, folder: Path, function: str, arguments: object, environment: dict[str, str] | None = None) -> Run:
        run = super().call(folder, function, arguments, environment)
        self.runs.append(run)
        return run

    def end_all(self) -> None:
        """Whatever the tests found, nobody of these runs goes on."""
        for run in self.runs:
            kill_all(run)
            run.wait(30)


# One for the session: each module's fixture below finds the first one's.
shared: list[Starter] = []


@pytest.fixture(scope="session")
def starter() -> Iterator[Starter]:
    if not shared:
        shared.append(Starter())
    yield shared[0]
    if shared and shared[0].process.poll() is None:
        shared[0].close()


@pytest.fixture
def nursery(starter: Starter) -> Iterator[Starter]:
    starter.runs.clear()
    try:
        yield starter
        for run in starter.runs:
            if run.has_ended:  # the others belong to a test that failed
                assert_all_gone(run)
    finally:
        starter.end_all()
