"""Batches to a device: copied by a stream of their own before the one before them is trained on. A stand-in takes CUDA's place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from freewheel.learners.learner import Transfer
from freewheel.memory.nested import Drawn


class Cuda:
    """Writes down what is asked of it."""

    def __init__(self) -> None:
        self.said: list[str] = []
        cuda = self

        class Event:
            def record(self, stream: str) -> None:
                cuda.said.append(f"event on {stream}")

            def synchronize(self) -> None:
                cuda.said.append("wait for the event")

        self.Event = Event

    def Stream(self, device: torch.device) -> str:
        return "side"

    def current_stream(self, device: torch.device) -> str:
        return "main"

    @contextmanager
    def stream(self, stream: str) -> Iterator[None]:
        self.said.append(f"into {stream}")
        yield
        self.said.append(f"out of {stream}")


class Rows(torch.Tensor):
    """Says how it was copied and who reads it."""

    said: list[str] = []  # noqa: RUF012  shared on purpose

    def to(self, *given: Any, **named: Any) -> Any:
        self.said.append(f"copy, waits: {not named['non_blocking']}")
        return self

    def record_stream(self, stream: Any) -> None:
        self.said.append(f"read by {stream}")


def test_a_copy_does_not_wait_and_is_waited_for_before_it_is_read() -> None:
    cuda = Cuda()
    Rows.said = cuda.said
    rows: Any = torch.zeros(2).as_subclass(Rows)
    transfer = Transfer(torch.device("cpu"), cuda)
    drawn = Drawn([{"obs": {"a": rows}}], [{}])
    transfer.start(drawn)
    assert cuda.said == ["into side", "copy, waits: False", "event on side", "out of side"]
    cuda.said.clear()
    (group,) = transfer.finish(drawn)
    assert cuda.said == ["wait for the event", "read by main"]
    assert group["obs"]["a"] is rows
