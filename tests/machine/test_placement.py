"""Devices of the roles, from the names of devices alone: no device is needed to choose one."""

from __future__ import annotations

import pytest

from freewheel.errors import ConfigError
from freewheel.machine.device import balanced, place, place_workers

FOUR = ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]


@pytest.mark.parametrize(
    ("learner", "workers", "expected"),
    [
        ("cuda", 1, ("cuda:0",)),
        ("cuda", 0, ("cuda:0",)),
        ("cuda", 3, ("cuda:0", "cuda:1", "cuda:2")),
        ("cuda:2", 3, ("cuda:2", "cuda:0", "cuda:1")),
        ("cuda:3", 4, ("cuda:3", "cuda:0", "cuda:1", "cuda:2")),
        ("cpu", 3, ("cpu", "cpu", "cpu")),
        ("mps", 1, ("mps",)),
    ],
)
def test_workers_have_a_device_each_from_the_learners_own_on(
    learner: str, workers: int, expected: tuple[str, ...]
) -> None:
    assert place_workers(learner, workers, FOUR) == expected


def test_more_workers_than_devices_are_refused_with_their_number() -> None:
    said = r"learner\.workers=3 on learner\.device=cuda need one CUDA device each, .* has 2 \(cuda:0, cuda:1\)\. Lower"
    with pytest.raises(ConfigError, match=said):
        place_workers("cuda", 3, FOUR[:2])
    with pytest.raises(ConfigError, match=r"learner\.workers=2 needs .* learner\.device=mps"):
        place_workers("mps", 2, [])


def test_the_heaviest_choose_first_and_take_what_has_least() -> None:
    assert balanced([1, 5, 4], {"a": 0.0, "b": 0.0}) == ("b", "a", "b")
    assert balanced([1, 1, 1], {"a": 2.5, "b": 0.0}) == ("b", "b", "b")
    assert balanced([1, 1, 1, 1], {"a": 2.5, "b": 0.0}) == ("b", "b", "b", "a")
    assert balanced([], {"a": 0.0}) == ()


def test_actors_keep_away_from_the_learner_as_long_as_others_have_less() -> None:
    spread = place("cuda", 1, "cuda", [4, 4, 4, 4], ratio=8.0, cuda=FOUR[:3])
    assert spread.workers == ("cuda:0",)
    assert spread.actors == ("cuda:1", "cuda:2", "cuda:1", "cuda:2")
    shared = place("cuda", 2, "cuda", [4, 4, 4, 4], ratio=8.0, cuda=FOUR[:2])
    assert shared.workers == ("cuda:0", "cuda:1")
    assert shared.actors == ("cuda:0", "cuda:1", "cuda:0", "cuda:1")


def test_a_learner_that_draws_little_leaves_its_device_to_actors() -> None:
    """A tenth of a row is drawn per row collected: collecting is the larger part of the work."""
    light = place("cuda", 1, "cuda", [4, 4, 4, 4], ratio=0.1, cuda=FOUR[:2])
    assert light.actors == ("cuda:1", "cuda:1", "cuda:0", "cuda:1")


def test_a_learner_on_the_cpu_takes_nothing_of_a_device_and_named_devices_are_kept() -> None:
    assert place("cpu", 2, "cuda", [8, 8], 8.0, FOUR[:2]).actors == ("cuda:0", "cuda:1")
    assert place("cuda", 1, "cuda:3", [8, 8], 8.0, FOUR).actors == ("cuda:3", "cuda:3")
    assert place("cuda", 1, "cpu", [8, 8], 8.0, FOUR).actors == ("cpu", "cpu")
