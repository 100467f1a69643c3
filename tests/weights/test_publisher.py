"""When versions of the weights are published and fetched. A clock that is set by hand and a stand-in for CUDA."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_transfer import Cuda

from freewheel.weights import board as boards
from freewheel.weights.board import Board, Fetcher, HostCopy, Publisher


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(boards, "time", made)
    return made


def weights(value: float) -> torch.Tensor:
    return torch.full((4,), float(value))


def offered(publisher: Publisher, updates: int, value: float = 1.0) -> bool:
    """Whether that made a version."""
    before = publisher.version
    publisher.offer(weights(value), updates)
    return publisher.version > before


def test_updates_are_merged_into_one_version_until_enough_of_them_or_time_is_over(clock: Clock) -> None:
    publisher = Publisher(Board(16), 8, 0.5)
    publisher.publish(weights(0), 0)
    assert [n for n in range(1, 20) if offered(publisher, n)] == [8, 16]
    clock.now += 0.5
    assert offered(publisher, 19)
    clock.now += 5
    assert not offered(publisher, 19)  # there is nothing to publish
    assert offered(publisher, 20)
    assert publisher.num_published == 5


def test_a_version_that_hardly_differs_is_not_published(clock: Clock) -> None:
    board = Board(16)
    publisher = Publisher(board, 1, 9.0, least_change=0.1, num_params=3)
    publisher.publish(weights(1.0), 0)
    assert not offered(publisher, 1, 1.05)
    assert offered(publisher, 2, 1.11)  # by the version before, not by the weights that were offered last
    assert not offered(publisher, 3, 1.2)
    counted = weights(1.2)
    counted[3] = 1e6  # a count of BatchNorm: it is no parameter
    publisher.offer(counted, 4)
    assert publisher.version == 2
    publisher.publish(weights(1.2), 4)  # the last one of a run
    mine = torch.empty(4)
    assert board.fetch(mine) == 3
    assert mine.tolist() == weights(1.2).tolist()


def test_without_a_least_change_equal_weights_are_published(clock: Clock) -> None:
    publisher = Publisher(Board(16), 1, 9.0)
    assert offered(publisher, 1)
    assert offered(publisher, 2)


@pytest.mark.parametrize(
    ("every_steps", "every_s", "fetched"),
    [(0, 0.0, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]), (3, 0.0, [0, 3, 6, 9]), (0, 4.0, [0, 4, 8]), (3, 2.0, [0, 2, 4, 6, 8])],
)
def test_an_actor_fetches_by_steps_and_by_time(
    every_steps: int, every_s: float, fetched: list[int], clock: Clock
) -> None:
    """A step takes a second, and each has a new version. A version is fetched once."""
    board = Board(16)
    fetcher = Fetcher(board, torch.zeros(4), every_steps, every_s)
    seen = []
    for step in range(10):
        board.publish(weights(step))
        for _ in range(2):  # two turns within a step
            if fetcher.fetch(step):
                seen.append(step)
                assert fetcher.vector.tolist() == weights(step).tolist()
        clock.now += 1.0
    assert seen == fetched


def test_what_is_published_after_a_quiet_time_is_fetched_at_once(clock: Clock) -> None:
    board = Board(16)
    fetcher = Fetcher(board, torch.zeros(4), every_steps=10)
    assert not fetcher.fetch(0)
    board.publish(weights(1))
    assert fetcher.fetch(5)  # the first weights
    board.publish(weights(2))
    assert [step for step in range(5, 20) if fetcher.fetch(step)] == [15]
    board.publish(weights(3))
    assert fetcher.fetch(40)


class Device(torch.Tensor):
    """A vector of the device: says what is done to it."""

    said: list[str] = []  # noqa: RUF012  shared on purpose

    def clone(self, *given: Any, **named: Any) -> Any:
        self.said.append("staged")
        return super().clone()

    def record_stream(self, stream: Any) -> None:
        self.said.append(f"read by {stream}")

    def cpu(self, *given: Any, **named: Any) -> Any:
        raise AssertionError("this waits for the device")


class Slow(Cuda):
    """Its copies are done when it is said."""

    is_done = False

    def __init__(self) -> None:
        super().__init__()
        cuda, plain = self, self.Event

        class Event(plain):  # type: ignore[misc,valid-type]
            def query(self) -> bool:
                return cuda.is_done

        class Stream(str):
            def wait_stream(self, other: str) -> None:
                cuda.said.append(f"{self} waits for {other}")

        self.Event, self.Stream = Event, lambda device: Stream("side")  # type: ignore[assignment,method-assign]

    def is_available(self) -> bool:
        return False


def test_weights_of_a_device_are_copied_while_the_learner_goes_on(clock: Clock) -> None:
    cuda = Slow()
    Device.said = cuda.said
    board = Board(16)
    publisher = Publisher(board, 1, 9.0, copy=HostCopy(4, torch.device("cpu"), cuda))
    given: Any = weights(1).as_subclass(Device)
    publisher.offer(given, 1)
    # Staged by the computing stream: the next update may change the weights.
    said = ["staged", "side waits for main", "into side", "event on side", "out of side", "read by side"]
    assert cuda.said == said
    given.fill_(2.0)
    assert publisher.version == 0
    publisher.offer(given, 1)
    assert publisher.version == 0
    cuda.is_done = True
    publisher.offer(given, 1)
    mine = torch.empty(4)
    assert board.fetch(mine) == 1
    assert mine.tolist() == [1.0] * 4
    cuda.said.clear()
    cuda.is_done = False
    publisher.offer(given, 2)
    publisher.offer(given, 2, waits=True)  # the learner has nothing else to do
    assert cuda.said == [*said, "wait for the event"]
    assert publisher.version == 2
    publisher.offer(given, 3)
    publisher.publish(given, 3)  # the memory of a copy that is on its way is not overwritten
    assert publisher.version == 4


def test_where_actors_wait_for_a_version_it_is_out_at_once(clock: Clock) -> None:
    """Rollouts: every_s is 0."""
    cuda = Slow()
    Device.said = cuda.said
    publisher = Publisher(Board(16), 1, 0.0, copy=HostCopy(4, torch.device("cpu"), cuda))
    given: Any = weights(1).as_subclass(Device)
    publisher.offer(given, 1)
    assert publisher.version == 1
