"""Back-pressure: actors never collect more than the lag allows, and nobody waits for ever."""

from __future__ import annotations

import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from freewheel.algos.make import make_algo
from freewheel.config import assemble
from freewheel.contracts import Spaces
from freewheel.memory.counts import RunCounts
from freewheel.memory.rollout_pace import RolloutPace


class Rows:
    """The learner's view of the rollout: what is there and what the next one needs."""

    def __init__(self, available: int, due: int) -> None:
        self.rollout = self
        self.available, self.due = available, due


def pace(max_lag: int, rows: int = 10, lanes: int = 4, steps: int = 0) -> RolloutPace:
    counts = RunCounts(1).of(0)
    counts.add_steps(steps)
    made = RolloutPace(counts, rows * lanes, lanes, max_lag, rows * lanes, is_lockstep=False)
    made.show(steps)
    made.begin(is_again=False)
    return made


def learned(given_to: RolloutPace) -> None:
    """A rollout was learned from."""
    assert given_to.due()
    available = given_to.seen - given_to._handed - given_to.num_rows
    given_to.learned(1, Rows(available, given_to.num_rows))  # type: ignore[arg-type]


@given(
    data=st.data(), max_lag=st.integers(0, 3), rows=st.integers(2, 6), lanes=st.integers(1, 5), steps=st.integers(0, 99)
)
@settings(max_examples=100, deadline=None)
def test_the_lag_is_bounded_and_somebody_can_always_go_on(
    data: st.DataObject, max_lag: int, rows: int, lanes: int, steps: int
) -> None:
    """One actor whose lanes go in step, and a learner; who has the turn is drawn."""
    given_to = pace(max_lag, rows, lanes, steps)
    num_rows, pending, done, waits = rows * lanes, 0, 0, False
    acted_by: list[int] = []  # of each outcome, the rollouts that were learned from before its action
    for _ in range(200):
        complete = given_to.seen - steps - done * num_rows >= num_rows
        assert given_to.due() == complete
        may_act = given_to.may_answer(pending if not waits else 0)
        if complete and (not may_act or data.draw(st.booleans())):
            assert all(done - version <= max_lag for version in acted_by[done * num_rows :][:num_rows])
            learned(given_to)
            done += 1
        elif may_act:
            given_to.show(0 if waits else pending)
            waits, pending = False, lanes
            acted_by += [done] * lanes
        else:
            assert not waits, "nobody can go on"
            given_to.show(pending)  # the bootstraps
            waits = True
    assert done > 0


def test_what_was_allowed_once_stays_allowed() -> None:
    given_to = pace(1)
    before = given_to.allowed
    given_to._allow(-5, 40)
    assert given_to.allowed == before == 2 * 40 - 4
    given_to._allow(40, 40)
    assert given_to.allowed == 40 + before


def test_rollouts_that_wait_are_told() -> None:
    given_to = pace(2)
    assert given_to.backlog() == 0
    given_to.show(95)
    assert given_to.backlog() == 2


def test_waits_end_when_they_are_due_and_when_they_are_not() -> None:
    given_to = pace(0)
    given_to.wait_to_learn()  # ends by its deadline
    assert not given_to.due()
    given_to.show(40)
    given_to.wait_to_learn()
    assert given_to.due()
    assert not given_to.may_answer(0)
    given_to.wait_to_act()
    assert not given_to.may_answer(0)


def test_in_lockstep_actors_stop_as_soon_as_a_rollout_may_be_there() -> None:
    given_to = RolloutPace(RunCounts(1).of(0), 40, 4, 1, 40, is_lockstep=True)
    given_to.begin(is_again=False)
    given_to.show(36)
    assert given_to.may_answer(3)
    assert not given_to.may_answer(4)
    given_to.show(4)
    assert given_to.due()
    given_to.learned(0, Rows(0, 2))  # type: ignore[arg-type]  # all 40 are of episodes that still run: 2 more may end enough
    assert not given_to.due()
    assert given_to.may_answer(1)
    assert not given_to.may_answer(2)


def test_a_checkpoint_says_how_many_rows_wait_and_a_resumed_run_goes_on_there() -> None:
    given_to = pace(1)
    given_to.show(60)
    learned(given_to)
    rows = Rows(0, 40)
    given_to.before_save(rows)  # type: ignore[arg-type]
    assert rows.available == 20
    counts = RunCounts(1).of(0)
    counts.add_steps(60)
    resumed = RolloutPace(counts, 40, 4, 1, 40, is_lockstep=False)
    assert resumed.resume({}, rows) == []  # type: ignore[arg-type]
    assert (resumed.seen, resumed.allowed) == (given_to.seen, given_to.allowed)
    resumed.show(19)
    assert not resumed.due()
    resumed.show(1)
    assert resumed.due()


def test_a_run_that_goes_on_without_its_rows_collects_anew() -> None:
    counts = RunCounts(1).of(0)
    counts.add_steps(60)
    given_to = RolloutPace(counts, 40, 4, 1, 40, is_lockstep=False)
    assert "collected again" in given_to.resume({}, None)[0]
    given_to.show(39)
    assert not given_to.due()
    given_to.show(1)
    assert given_to.due()


@pytest.mark.parametrize(("algo", "ahead"), [("ppo", 0), ("appo", 1)])
def test_only_appo_lets_actors_go_ahead(algo: str, ahead: int) -> None:
    config = assemble("E-v0", {"algo": algo, "world.lanes": 4, "rollout.rows": 10, "ppo.minibatches": 1}, "none")
    made = make_algo(config, Spaces(spaces.Box(-1, 1, (4,)), spaces.Discrete(2), 4))
    assert made.max_lag == ahead
    for is_local, allowed in ((False, 40), (True, 76 if ahead else 40)):
        given_to = made.pace(RunCounts(1).of(0), 4, is_local)
        given_to.begin(is_again=False)
        assert given_to.allowed == allowed
