"""The process that runs are forked from serves all tests here."""

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

    def call(self, folder: Path, function: str, arguments: object) -> Run:
        run = super().call(folder, function, arguments)
        self.runs.append(run)
        return run


@pytest.fixture(scope="session")
def starter() -> Iterator[Starter]:
    starter = Starter()
    yield starter
    starter.close()


@pytest.fixture
def nursery(starter: Starter) -> Iterator[Starter]:
    starter.runs.clear()
    yield starter
    for run in starter.runs:
        if not run.has_ended:
            kill_all(run)
            run.wait(30)
        assert_all_gone(run)
