"""Dials: set by one process, seen by all, refused where they make no sense."""

from __future__ import annotations

import multiprocessing
import time

import pytest

from freewheel.errors import ConfigError
from freewheel.memory.counts import Counts, RunCounts
from freewheel.memory.dials import Dials
from freewheel.memory.ratio_pace import Ratio, RatioPace


def follow(dials: Dials, seen: Dials) -> None:
    """In another process: says in the dial lr what it saw of epsilon."""
    before = dials.version
    over_s = time.monotonic() + 30
    while dials.version == before and time.monotonic() < over_s:
        time.sleep(0.005)
    seen.set("lr", dials.value("epsilon"))


def test_another_process_sees_them() -> None:
    dials, seen = Dials(), Dials()
    process = multiprocessing.get_context("forkserver").Process(target=follow, args=(dials, seen))
    process.start()
    while process.is_alive() and seen.value("lr") is None:
        dials.set("epsilon", 0.25)
        time.sleep(0.01)
    process.join(30)
    process.close()
    assert seen.value("lr") == 0.25


def test_they_are_set_and_given_back() -> None:
    dials = Dials()
    assert (dials.version, dials.state(), dials.value("lr")) == (0, {}, None)
    dials.set("lr", 0.0)
    dials.set("epsilon", 1.0)
    assert (dials.version, dials.state()) == (2, {"lr": 0.0, "epsilon": 1.0})
    other = Dials()
    other.set_state(dials.state())
    assert other.state() == dials.state()
    dials.set("lr", None)
    assert (dials.version, dials.state()) == (3, {"epsilon": 1.0})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("gamma", 0.5, "there is no dial 'gamma'; there are epsilon, lr, ratio"),
        ("epsilon", 1.5, r"epsilon=1.5 must be a number between 0.0 and 1.0"),
        ("epsilon", float("nan"), "epsilon=nan must be a number between"),
        ("lr", -1e-9, "lr=-1e-09 must be a number between"),
        ("lr", "0.1", "lr='0.1' must be a number between"),
        ("lr", [1], r"lr=\[1\] must be a number between"),
        ("lr", True, "lr=True must be a number between"),
        ("ratio", 0.0, "ratio=0.0 must be a number between"),
        ("prioritized", 0.5, "prioritized=0.5 must be 0 or 1"),
        ("prioritized", "1", "prioritized='1' must be 0 or 1"),
    ],
)
def test_what_makes_no_sense_is_refused_and_changes_nothing(name: str, value: float, message: str) -> None:
    dials = Dials()
    with pytest.raises(ConfigError, match=message):
        dials.set(name, value)
    assert (dials.version, dials.state()) == (0, {})


@pytest.mark.parametrize(("value", "kept"), [(True, 1.0), (1, 1.0), (0.0, 0.0), (False, 0.0)])
def test_a_switch_is_on_or_off(value: float, kept: float) -> None:
    dials = Dials()
    dials.set("prioritized", value)
    assert dials.state() == {"prioritized": kept}


def paced(dials: Dials, counts: Counts | None = None) -> RatioPace:
    return RatioPace(counts or RunCounts(1).of(0), Ratio(8.0, 16, 1, 100), 20, dials=dials)


def turn(dials: Dials, pace: RatioPace, ratio: float | None) -> None:
    """As a callback does."""
    dials.set("ratio", ratio, pace.since(ratio))


def test_a_ratio_is_counted_from_the_step_at_which_it_is_set() -> None:
    dials = Dials()
    pace = paced(dials)
    pace.counts.add_steps(300)
    assert pace.backlog() == 100
    pace.learned(60, None)
    turn(dials, pace, 2.0)
    assert pace.backlog() == 0  # what was due by the old ratio is not made good
    assert pace.target == 2.0
    pace.counts.add_steps(80)
    assert pace.backlog() == 10
    pace.learned(10, None)
    turn(dials, pace, None)
    assert pace.backlog() == 0
    pace.counts.add_steps(80)
    assert (pace.backlog(), pace.target) == (40, 8.0)


@pytest.mark.parametrize("every", [1, 3, 10])
def test_a_ratio_that_changes_at_every_step_is_held(every: int) -> None:
    """What was collected towards a call counted for nothing once: no update was ever made."""
    dials = Dials()
    pace = paced(dials)
    pace.counts.add_steps(100)
    due = 0.0
    for step in range(1000):
        if step % every == 0:
            turn(dials, pace, 1.0 + step * 1e-3)
        due += pace.target / 16
        pace.counts.add_steps(1)
        pace.learned(pace.backlog(), None)
    assert pace.counts.updates == pytest.approx(due, abs=1.5)


def test_actors_and_learner_never_wait_for_each_other_whenever_they_look() -> None:
    """A learner that a busy machine held up saw the dial later than the actors, and both waited for ever."""
    dials, counts = Dials(), RunCounts(1).of(0)
    actor, learner = paced(dials, counts), paced(dials, counts)
    counts.add_steps(160)
    learner.learned(15, None)
    turn(dials, actor, 2.0)
    while actor.may_answer(0):
        counts.add_steps(4)
        assert counts.steps < 1000
    assert learner.due()
    learner.learned(1, None)
    assert actor.may_answer(0)
    late = paced(dials, counts)  # of a role that takes another's place
    assert (late.limit(counts.updates), late.backlog()) == (actor.limit(counts.updates), learner.backlog())


def test_a_ratio_set_during_the_warm_up_does_not_cut_it_short() -> None:
    dials = Dials()
    pace = paced(dials)
    pace.counts.add_steps(10)
    turn(dials, pace, 16.0)
    assert pace.backlog() == 0
    pace.counts.add_steps(90)
    assert pace.backlog() == 0
    pace.counts.add_steps(5)
    assert pace.backlog() == 5


@pytest.mark.parametrize("has_rows", [True, False])
def test_a_resumed_pace_goes_on_with_the_ratio_it_was_saved_with(has_rows: bool) -> None:
    """Calls of 3.2 steps: a pace that counted anew would be off by a part of a call."""
    dials = Dials()
    pace = paced(dials)
    pace.counts.add_steps(200)
    pace.learned(pace.backlog(), None)
    turn(dials, pace, 5.0)
    pace.counts.add_steps(50)
    pace.learned(pace.backlog(), None)
    again = Dials()
    again.set_state(dials.state())
    resumed = paced(again)
    resumed.counts.add_steps(250)
    resumed.counts.add_updates(pace.counts.updates)
    resumed.resume(pace.state(), object() if has_rows else None)
    other = paced(again, resumed.counts)  # of a role that has only heard where it is counted from
    other.set_state(resumed.counted_from())
    for one in (pace, resumed):
        one.counts.add_steps(2 if has_rows else 102)
    assert (other.backlog(), other.limit(80)) == (resumed.backlog(), resumed.limit(80))
    if has_rows:
        assert (resumed.backlog(), resumed.state()) == (pace.backlog(), pace.state()) == (1, pace.state())
    else:
        assert (resumed.backlog(), resumed.state()["from_step"]) == (0, 350)  # it warms up again
