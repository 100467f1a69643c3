"""Rollouts: each row once, whoever was fast; outcomes with their actions; nothing across episodes; all that is left out counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rollout_tape import Tape, rows_of

from freewheel.algos.from_rollouts import lane_rows
from freewheel.errors import ReplayError
from freewheel.memory.lanes import Bootstrap
from freewheel.memory.rollout import Rollout

Array = np.ndarray[Any, Any]


def test_rows_and_what_came_of_them() -> None:
    tape = Tape(1, 4)
    tape.begin(0)
    tape.go_on(0)
    tape.end(0)  # row 2 is final
    tape.begin(0)
    tape.go_on(0)
    assert tape.rollout.take(0) is None
    tape.end(0, terminated=False)  # row 5 is final
    taken = tape.rollout.take(0)
    assert taken is not None
    assert rows_of(taken) == [(0, 0), (0, 1), (0, 3), (0, 4)]
    kept = taken.kept
    assert taken.reward[kept].tolist() == [0, 1, 3, 4]
    assert taken.action.tolist() == [0, 1, 3, 4]
    assert taken.columns["log_prob"].tolist() == [0, -1, -3, -4]
    np.testing.assert_allclose(taken.value[kept], [0, 0.1, 0.3, 0.4], rtol=1e-6)
    assert taken.terminated[kept].tolist() == [False, True, False, False]
    assert taken.goes_on[kept].tolist() == [True, False, True, False]
    assert taken.follows[kept].tolist() == [False, True, False, True]
    # After row 1 the episode terminated, and what follows row 4 is to be filled in.
    np.testing.assert_allclose(taken.next_value[kept][[0, 2, 3]], [0.1, 0.4, 0.0], rtol=1e-6)
    assert taken.final_obs["obs"].tolist() == [[0, 5]]
    assert [index.tolist() for index in taken.final_at] == [[0], [4]]
    assert tape.rollout.take(0) is None


def test_a_cut_takes_the_value_of_where_it_is_cut() -> None:
    tape = Tape(1, 2)
    tape.begin(0)
    tape.go_on(0)
    tape.go_on(0)
    taken = tape.rollout.take(0)
    assert taken is not None
    np.testing.assert_allclose(taken.next_value[taken.kept], [0.1, 0.2], rtol=1e-6)
    assert taken.goes_on[taken.kept].tolist() == [True, False]
    tape.go_on(0)
    tape.end(0)
    again = tape.rollout.take(0)
    assert again is not None
    assert rows_of(again) == [(0, 2), (0, 3)]


def test_a_bootstrap_is_an_outcome_that_is_in_no_row_yet() -> None:
    tape = Tape(2, 3)
    tape.begin(0)
    tape.begin(1)
    tape.go_on(0)
    assert tape.rollout.take(0) is None
    bootstrap = Bootstrap(np.array([1, 0]), np.array([7.0, 8.0], np.float32), np.array([0.7, 0.8], np.float32))
    taken = tape.rollout.take(0, lambda heads: bootstrap)
    assert taken is not None
    assert rows_of(taken) == [(0, 0), (0, 1), (1, 0)]
    assert taken.reward[taken.kept].tolist() == [0, 8, 7]
    np.testing.assert_allclose(taken.next_value[taken.kept], [0.1, 0.8, 0.7])
    # What was handed out with its bootstrap is not handed out again when its outcome becomes a row.
    tape.go_on(0)
    tape.go_on(1)
    tape.go_on(0)
    tape.go_on(1)
    tape.end(1)
    again = tape.rollout.take(1)
    assert again is not None
    assert rows_of(again) == [(0, 2), (1, 1), (1, 2)]


@given(data=st.data(), lanes=st.integers(1, 4), num_rows=st.integers(1, 12))
@settings(max_examples=120, deadline=None)
def test_each_row_once_in_order_whatever_the_lanes_do(data: Any, lanes: int, num_rows: int) -> None:
    tape = Tape(lanes, num_rows, rows=400)
    is_open = [False] * lanes
    handed: list[tuple[int, int]] = []
    for _ in range(data.draw(st.integers(1, 120))):
        lane = data.draw(st.integers(0, lanes - 1))
        if not is_open[lane]:
            tape.begin(lane)
            is_open[lane] = True
        elif data.draw(st.booleans()):
            tape.go_on(lane)
        else:
            tape.end(lane, data.draw(st.booleans()))
            is_open[lane] = False
        taken = tape.rollout.take(0) if data.draw(st.booleans()) else None
        if taken is not None:
            assert taken.kept.sum() == num_rows
            handed += rows_of(taken)
            rows = np.array([k for _, k in rows_of(taken)], np.float32)
            np.testing.assert_array_equal(taken.reward[taken.kept], rows)
            final = set(map(tuple, np.argwhere(taken.next_value == 0)))
            assert set(zip(*map(np.ndarray.tolist, taken.final_at), strict=True)) <= final
            for lane_at, place in zip(*np.nonzero(taken.goes_on), strict=True):
                assert taken.kept[lane_at, place + 1]
                assert taken.follows[lane_at, place + 1]
    assert len(handed) == len(set(handed))
    assert set(handed) <= set(tape.steps)
    for lane in range(lanes):
        mine = [row for at, row in handed if at == lane]
        known = [row for at, row in tape.steps if at == lane]
        assert mine == known[: len(mine)]
    assert len(tape.steps) - len(handed) < num_rows or tape.rollout.take(0) is not None
    assert (tape.rollout.overwritten, tape.rollout.stale, tape.rollout.lost) == (0, 0, 0)


def test_rows_beyond_a_rollout_wait_for_the_next_and_come_from_the_longest_lane() -> None:
    tape = Tape(2, 4)
    for lane in (0, 1):
        tape.begin(lane)
    for lane in (0, 0, 0, 0, 1):
        tape.go_on(lane)
    taken = tape.rollout.take(0)
    assert taken is not None
    assert rows_of(taken) == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert tape.rollout.available == 1
    np.testing.assert_allclose(taken.next_value[0, 2], 0.3)


def test_rows_of_an_old_policy_are_left_out_and_counted() -> None:
    tape = Tape(2, 3, max_lag=1)
    tape.begin(0)
    tape.begin(1)
    tape.version = 2
    tape.go_on(0)
    for _ in range(3):
        tape.go_on(1)
    assert tape.rollout.take(2) is None  # 4 outcomes, 2 of them of version 0
    assert tape.rollout.available == 2
    tape.go_on(0)
    taken = tape.rollout.take(2)
    assert taken is not None
    assert rows_of(taken) == [(0, 1), (1, 1), (1, 2)]
    assert taken.lag.tolist() == [0, 0, 0]
    assert tape.rollout.stale == 2


def test_an_action_whose_outcome_never_came_is_counted_and_nothing_leaks_across_it() -> None:
    tape = Tape(1, 2)
    tape.begin(0)
    tape.go_on(0)
    tape.writer = tape.lanes.writer()  # the env was replaced; row 1 has no outcome
    tape.begin(0)
    tape.go_on(0)
    taken = tape.rollout.take(0)
    assert taken is not None
    assert rows_of(taken) == [(0, 0), (0, 2)]
    assert taken.goes_on[taken.kept].tolist() == [False, False]
    np.testing.assert_allclose(taken.next_value[taken.kept], [0.1, 0.3], rtol=1e-6)
    assert tape.rollout.lost == 1


def test_rows_that_were_written_over_are_counted() -> None:
    tape = Tape(1, 4, rows=8)
    tape.begin(0)
    for _ in range(20):
        tape.go_on(0)
    taken = tape.rollout.take(0)
    assert taken is not None
    assert tape.rollout.overwritten == 21 - 8
    assert rows_of(taken)[0] == (0, 13)


def test_a_writer_that_overtakes_the_reader_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    tape = Tape(1, 4, rows=8)
    tape.begin(0)
    for _ in range(6):
        tape.go_on(0)
    reader = tape.rollout._reader
    read = reader.obs

    def late(*args: Any) -> Any:
        for _ in range(4):
            tape.go_on(0)
        return read(*args)

    monkeypatch.setattr(reader, "obs", late)
    with pytest.raises(ReplayError, match="written over"):
        tape.rollout.take(0)


def test_stacked_frames_begin_with_the_episode() -> None:
    tape = Tape(1, 5, stack=3)
    tape.begin(0)
    for _ in range(3):
        tape.go_on(0)
    tape.end(0, terminated=False)  # row 4 is final
    tape.begin(0)
    tape.go_on(0)
    taken = tape.rollout.take(0)
    assert taken is not None
    seen = taken.obs["obs"][:, :, 1]
    assert seen.tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3], [5, 5, 5]]
    assert taken.final_obs["obs"][:, :, 1].tolist() == [[2, 3, 4]]


def test_its_state_comes_back() -> None:
    tape = Tape(2, 2)
    for lane in (0, 1):
        tape.begin(lane)
        tape.go_on(lane)
    assert tape.rollout.take(0) is not None
    tape.go_on(0)
    other = Rollout(tape.lanes, 2)
    other.set_state(tape.rollout.state())
    tape.go_on(1)
    ours, theirs = tape.rollout.take(0), other.take(0)
    assert ours is not None
    assert theirs is not None
    assert rows_of(ours) == rows_of(theirs) == [(0, 1), (1, 1)]


def test_a_lane_keeps_what_a_rollout_in_step_needs() -> None:
    assert lane_rows(1, 1, 1) >= 2 + 1
    for rows, lanes in ((128, 8), (4, 1), (1, 100)):
        assert lane_rows(rows, lanes, 4) >= 2 * rows + 4


def test_rows_of_the_newest_policy_wait_first_however_long_the_other_lanes_are() -> None:
    tape = Tape(2, 4)
    tape.begin(0)
    for _ in range(4):
        tape.go_on(0)  # ahead of the other lane, by the older policy
    tape.version = 1
    tape.begin(1)
    tape.go_on(1)
    tape.go_on(1)
    taken = tape.rollout.take(1)
    assert taken is not None
    assert rows_of(taken) == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert tape.rollout.available == 2


def test_a_learner_that_values_by_itself_is_shown_the_row_after_every_cut() -> None:
    tape = Tape(2, 4, revalues=True)
    for lane in (0, 1):
        tape.begin(lane)
        tape.go_on(lane)
    tape.go_on(0)
    tape.end(1, terminated=False)
    taken = tape.rollout.take(0)
    assert taken is not None
    assert [index.tolist() for index in taken.final_at] == [[0, 1], [1, 1]]
    assert taken.final_obs["obs"].tolist() == [
        [0, 2],
        [1, 2],
    ]  # where the first lane is cut, and where the second ended
    assert taken.next_value[taken.final_at].tolist() == [0, 0]


def test_skipped_rows_are_counted_and_never_handed_out() -> None:
    tape = Tape(1, 2)
    tape.begin(0)
    for _ in range(3):
        tape.go_on(0)
    tape.rollout.skip()
    assert tape.rollout.take(0) is None
    assert tape.rollout.lost == 4
    for _ in range(3):
        tape.go_on(0)
    taken = tape.rollout.take(0)
    assert taken is not None
    assert rows_of(taken) == [(0, 4), (0, 5)]
