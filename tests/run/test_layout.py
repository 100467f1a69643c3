"""The layout follows from settings and cores, and says why."""

from __future__ import annotations

from typing import Any

import pytest

from freewheel.config import assemble
from freewheel.run.layout import Layout, choose, split


def layout(cores: int, **given: Any) -> Layout:
    return choose(assemble("E-v0", {name.replace("__", "."): value for name, value in given.items()}), cores)


@pytest.mark.parametrize(("cores", "runtime"), [(1, "sequential"), (2, "local"), (64, "local")])
def test_auto_is_local_where_there_is_more_than_one_core(cores: int, runtime: str) -> None:
    assert layout(cores).runtime == runtime


def test_what_was_asked_for_goes_before_the_cores() -> None:
    assert layout(8, runtime="sequential").runtime == "sequential"
    alone = layout(1, runtime="local")
    assert (alone.runtime, alone.actors) == ("local", 1)
    assert "although there is 1 core" in alone.reason


@pytest.mark.parametrize(("cores", "actors"), [(2, 1), (3, 2), (8, 7), (9, 8), (64, 8)])
def test_one_actor_per_core_but_one_and_never_more_than_lanes(cores: int, actors: int) -> None:
    chosen = layout(cores, world__lanes=8)
    assert chosen.actors == actors == len(chosen.lanes_per_actor)


def test_actors_that_were_asked_for() -> None:
    assert layout(2, local__actors=5, world__lanes=8).actors == 5
    cut = layout(2, local__actors=5, world__lanes=3)
    assert cut.lanes_per_actor == (1, 1, 1)
    assert "local.actors=5 only 3" in cut.reason


@pytest.mark.parametrize("lanes", range(1, 20))
def test_lanes_are_split_evenly_and_none_is_lost(lanes: int) -> None:
    for actors in range(1, lanes + 1):
        parts = split(lanes, actors)
        assert (sum(parts), len(parts)) == (lanes, actors)
        assert max(parts) - min(parts) <= 1
        assert min(parts) >= 1


def test_threads_of_the_roles() -> None:
    assert layout(2, learner__threads=3).threads == {"actor": 1, "learner": 3}
    assert layout(1, learner__threads=3).threads == {"actor": 3, "learner": 3}


def test_workers_are_passed_on_to_the_learner() -> None:
    assert layout(2, learner__workers=2).learner_workers == 2
    assert layout(2, learner__workers=0).learner_workers == 0
    assert layout(1, learner__workers=2).learner_workers == 1


def test_the_reason_is_one_sentence() -> None:
    for cores in (1, 2, 4, 64):
        for given in ({}, {"runtime": "local"}, {"runtime": "sequential"}, {"local.actors": 2}):
            reason = choose(assemble("E-v0", given), cores).reason
            assert reason.endswith(".")
            assert reason.count(". ") == 0
    assert layout(4).reason == (
        "There are 4 cores, so actors and learner run side by side; one actor per core but the learner's."
    )
