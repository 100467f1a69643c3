"""Rollouts of whole episodes: what has ended is handed out at once and whole, what still runs waits, what is too long comes in parts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rollout_tape import Tape, rows_of


def tape_of(num_lanes: int, num_rows: int, rows: int = 64) -> Tape:
    return Tape(num_lanes, num_rows, rows, by_episodes=True)


def test_a_running_episode_waits_until_it_has_ended() -> None:
    tape = tape_of(2, 3)
    tape.begin(0)
    tape.begin(1)
    for _ in range(3):
        tape.go_on(0)
    tape.go_on(1)
    assert tape.rollout.take(0) is None  # four outcomes, and no episode is over
    assert (tape.rollout.available, tape.rollout.running) == (0, 4)
    tape.end(0)
    tape.begin(0)
    taken = tape.rollout.take(0)
    assert taken is not None
    assert rows_of(taken) == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert taken.terminated[taken.kept].tolist() == [False, False, False, True]
    assert taken.goes_on[taken.kept].tolist() == [True, True, True, False]
    tape.go_on(1)
    tape.end(1, terminated=False)
    again = tape.rollout.take(0)
    assert again is not None
    assert rows_of(again) == [(1, 0), (1, 1), (1, 2)]
    assert again.final_obs["obs"].tolist() == [[1, 3]]


def test_it_is_looked_again_as_soon_as_running_episodes_may_have_ended() -> None:
    tape = tape_of(2, 32, rows=200)
    rollout = tape.rollout
    assert rollout.due == 32
    tape.begin(0)
    tape.begin(1)
    for _ in range(10):
        tape.go_on(0)
    assert rollout.take(0) is None
    assert (rollout.available, rollout.running, rollout.due) == (0, 10, 22)  # 22 more, if all of them end
    for _ in range(25):
        tape.go_on(1)
    assert rollout.take(0) is None
    assert (rollout.available, rollout.running, rollout.due) == (0, 35, 2)  # any row may end enough of them
    tape.end(1)
    assert rollout.take(0) is None
    assert (rollout.available, rollout.running, rollout.due) == (26, 10, 28)
    tape.end(0)
    taken = rollout.take(0)
    assert taken is not None
    assert len(rows_of(taken)) == 37
    assert (rollout.available, rollout.running, rollout.due) == (0, 0, 32)
    again = tape_of(2, 32, rows=200).rollout
    rollout.due = 7
    again.set_state(rollout.state())
    assert again.due == 7


def test_all_that_has_ended_is_handed_out_however_much_it_is() -> None:
    tape = tape_of(3, 2)
    for lane in range(3):
        tape.begin(lane)
        tape.go_on(lane)
        tape.end(lane)
    taken = tape.rollout.take(0)
    assert taken is not None
    assert rows_of(taken) == [(lane, k) for lane in range(3) for k in range(2)]


def test_an_old_beginning_is_not_stale_when_the_end_is_new() -> None:
    tape = Tape(1, 2, by_episodes=True, max_lag=1)
    tape.begin(0)
    tape.version = 7
    tape.end(0)
    tape.begin(0)
    tape.end(0)
    taken = tape.rollout.take(7)
    assert taken is not None
    assert taken.lag.tolist() == [7, 0]
    assert tape.rollout.stale == 0


def test_an_episode_that_outgrows_its_lane_comes_in_parts() -> None:
    tape = tape_of(1, 4, rows=20)
    tape.begin(0)
    for _ in range(tape.rollout.longest):
        tape.go_on(0)
        assert tape.rollout.take(0) is None
    tape.go_on(0)
    taken = tape.rollout.take(0)
    assert taken is not None
    count = tape.rollout.longest + 1
    assert rows_of(taken) == [(0, k) for k in range(count)]
    # Cut there: it goes on by the value of where it stands, as rows do that are not collected by episodes.
    assert taken.next_value[taken.kept][-1] == pytest.approx(count / 10)


def test_an_env_that_was_replaced_ends_its_episode() -> None:
    tape = tape_of(1, 2)
    tape.begin(0)
    tape.go_on(0)
    tape.go_on(0)
    tape.writer = tape.lanes.writer()  # of the next life
    tape.begin(0)
    taken = tape.rollout.take(0)
    assert taken is not None
    assert rows_of(taken) == [(0, 0), (0, 1)]
    assert tape.rollout.lost == 1


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9), st.booleans()), min_size=3, max_size=30), st.data())
def test_each_row_of_an_ended_episode_comes_once_and_with_its_episode(
    episodes: list[tuple[int, int, bool]], data: st.DataObject
) -> None:
    tape = tape_of(3, 5, rows=200)
    ended: set[tuple[int, int]] = set()
    came: list[tuple[int, int]] = []
    for lane, length, terminated in episodes:
        before = len(tape.steps)
        tape.begin(lane)
        for _ in range(length - 1):
            tape.go_on(lane)
        tape.end(lane, terminated)
        ended |= {*tape.steps[before:]}
        if data.draw(st.booleans()):
            taken = tape.rollout.take(0)
            if taken is not None:
                rows = rows_of(taken)
                assert len(rows) >= 5
                came += rows
                assert np.count_nonzero(taken.kept) == len(rows)
    assert len(came) == len({*came})
    assert {*came} <= ended
    left = len(ended) - len(came)
    taken = tape.rollout.take(0)
    assert (taken is None) == (left < 5)
    assert taken is None or {*came, *rows_of(taken)} == ended
