"""Back-pressure: actors never collect more than the lag allows, and nobody waits for ever."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freewheel.config import assemble
from freewheel.learners.pace import NUM_PACE_COUNTS, Pace, actors_lag, pace_ratio
from freewheel.learners.ratio import STOP
from freewheel.memory.counter import Counters


def pace(max_lag: int, rows: int = 10, lanes: int = 4, steps: int = 0) -> Pace:
    config = assemble(
        "E-v0", {"algo": "appo", "world.lanes": lanes, "rollout.rows": rows, "ppo.minibatches": 1}, "none"
    )
    made = Pace(Counters(NUM_PACE_COUNTS), pace_ratio(config), rows * lanes, lanes, max_lag)
    made.begin(steps)
    return made


@given(
    data=st.data(), max_lag=st.integers(0, 3), rows=st.integers(2, 6), lanes=st.integers(1, 5), steps=st.integers(0, 99)
)
@settings(max_examples=100, deadline=None)
def test_the_lag_is_bounded_and_somebody_can_always_go_on(
    data: st.DataObject, max_lag: int, rows: int, lanes: int, steps: int
) -> None:
    """One actor whose lanes go in step, and a learner; who has the turn is drawn."""
    given_to = pace(max_lag, rows, lanes, steps)
    num_rows, pending, learned, waits = rows * lanes, 0, 0, False
    acted_by: list[int] = []  # of each outcome, the rollouts that were learned from before its action
    for _ in range(200):
        complete = given_to.seen - steps - learned * num_rows >= num_rows
        may_act = given_to.may_go_on(pending if not waits else 0)
        if complete and (not may_act or data.draw(st.booleans())):
            assert all(learned - version <= max_lag for version in acted_by[learned * num_rows :][:num_rows])
            learned += 1
            given_to.allow(steps + learned * num_rows)
        elif may_act:
            given_to.show(0 if waits else pending)
            waits, pending = False, lanes
            acted_by += [learned] * lanes
        else:
            assert not waits, "nobody can go on"
            given_to.show(pending)  # the tail
            waits = True
    assert learned > 0


def test_what_was_allowed_once_stays_allowed() -> None:
    given_to = pace(1)
    before = given_to.allowed
    given_to.allow(-5)
    assert given_to.allowed == before == 2 * 40 - 4
    given_to.allow(40)
    assert given_to.allowed == 40 + before


def test_rollouts_that_wait_are_told() -> None:
    given_to = pace(2)
    assert given_to.due() == 0
    given_to.show(95)
    assert given_to.due() == 2


def test_waits_end_when_they_are_due_and_when_they_are_not() -> None:
    given_to = pace(0)
    given_to.wait_for(1)  # ends by its deadline
    given_to.show(40)
    given_to.wait_for(40)
    assert not given_to.may_go_on(0)
    given_to.wait_to_act()
    assert not given_to.may_go_on(0)
    assert not given_to.is_stopping
    given_to.counts.add(STOP, 1)
    assert given_to.is_stopping


@pytest.mark.parametrize(("algo", "ahead"), [("ppo", 0), ("appo", 1)])
def test_only_appo_lets_actors_go_ahead(algo: str, ahead: int) -> None:
    assert actors_lag(assemble("E-v0", {"algo": algo}, "none")) == ahead
