"""The ratio: never out of proportion, whoever is faster, and no burst when a run goes on."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from freewheel.config import Config, LearnerConfig, LocalConfig, WorldConfig
from freewheel.learners.ratio import NUM_COUNTS, STEPS, STOP, UPDATES, Governor, Ratio, slack_of
from freewheel.memory.counter import Counters

RATIOS = st.builds(
    Ratio,
    samples_per_step=st.floats(0.01, 1000),
    batch_size=st.integers(1, 4096),
    updates_per_call=st.integers(1, 64),
    from_step=st.integers(0, 10_000),
    from_updates=st.integers(0, 10_000),
)


def test_one_update_of_128_per_four_steps() -> None:
    ratio = Ratio(samples_per_step=32, batch_size=128, updates_per_call=1, from_step=1000)
    assert [ratio.due(steps, 0) for steps in (0, 1000, 1003, 1004, 1011)] == [0, 0, 0, 1, 2]
    assert ratio.due(1011, updates=2) == 0
    assert ratio.next_at(0) == 1004
    assert ratio.next_at(2) == 1012
    assert ratio.achieved(1400, 100) == 32.0
    assert ratio.achieved(1000, 0) == 0.0


def test_calls_are_whole() -> None:
    ratio = Ratio(samples_per_step=32, batch_size=128, updates_per_call=8, from_step=0)
    assert [ratio.due(steps, 0) for steps in (31, 32, 63, 64)] == [0, 8, 8, 16]
    assert ratio.next_at(8) == 64


@given(RATIOS, st.integers(0, 300))
@example(
    Ratio(samples_per_step=0.12, batch_size=1, updates_per_call=1, from_step=0), 14
)  # 15 / 0.12 is a little over 125
def test_the_next_call_is_due_exactly_when_it_says(ratio: Ratio, calls: int) -> None:
    updates = ratio.from_updates + calls * ratio.updates_per_call
    at = ratio.next_at(updates)
    assert ratio.due(at, updates) > 0
    assert ratio.due(at - 1, updates) <= 0


@settings(deadline=None)
@given(RATIOS, st.integers(0, 500), st.integers(1, 64), st.lists(st.booleans(), min_size=50, max_size=300))
def test_nobody_gets_ahead_in_any_order(ratio: Ratio, slack: int, lanes: int, turns: list[bool]) -> None:
    """Actors and learner take turns in any order: steps never exceed the updates' by more than slack, a call and a turn."""
    counts = Counters(NUM_COUNTS)
    counts.add(UPDATES, ratio.from_updates)
    governor = Governor(counts, ratio, slack)
    for acts in turns:
        if acts and governor.may_act():
            governor.add_steps(lanes)
        elif not acts and governor.due() > 0:
            governor.add_updates(ratio.updates_per_call)
        assert governor.steps < governor.limit(governor.updates) + lanes
        owed = (governor.updates - ratio.from_updates) * ratio.batch_size
        assert owed <= max(governor.steps - ratio.from_step, 0) * ratio.samples_per_step * (1 + 1e-9) + 1e-6


@settings(deadline=None, max_examples=50)
@given(RATIOS, st.integers(0, 200), st.integers(1, 64))
def test_whoever_waits_waits_for_the_right_count(ratio: Ratio, slack: int, lanes: int) -> None:
    counts = Counters(NUM_COUNTS)
    counts.add(UPDATES, ratio.from_updates)
    governor = Governor(counts, ratio, slack)
    while governor.may_act():
        governor.add_steps(max(lanes, 1 + int(ratio.steps_per_call)))
    waited: list[tuple[int, int]] = []

    class Seen(Counters):
        def __init__(self) -> None:
            """Counts nothing."""

        def value(self, index: int) -> int:
            return counts.value(index)

        def wait(self, index: int, target: int, timeout_s: float) -> bool:
            waited.append((index, target))
            return True

    governor.counts = Seen()
    governor.wait_to_act()
    governor.wait_to_learn()
    (held_by, enough), (fed_by, at) = waited
    assert (held_by, fed_by) == (UPDATES, STEPS)
    assert governor.limit(enough) > governor.steps >= governor.limit(enough - ratio.updates_per_call)
    assert at == ratio.next_at(governor.updates)


def test_free_actors_are_never_held() -> None:
    counts = Counters(NUM_COUNTS)
    counts.add(STEPS, 10**9)
    ratio = Ratio(32, 128, 1, 0)
    assert Governor(counts, ratio, 10, is_free=True).may_act()
    assert not Governor(counts, ratio, 10).may_act()


def test_the_learner_is_woken_by_steps() -> None:
    counts = Counters(NUM_COUNTS)
    governor = Governor(counts, Ratio(32, 128, 1, 0), 10)
    timer = threading.Timer(0.05, lambda: governor.add_steps(4))
    timer.start()
    while governor.due() <= 0:
        governor.wait_to_learn()
    timer.join()
    assert governor.due() == 1


def test_the_end_comes_in_two_steps() -> None:
    counts = Counters(NUM_COUNTS)
    governor = Governor(counts, Ratio(32, 128, 1, 0), 10)
    seen = []
    for _ in range(3):
        seen.append((governor.is_stopping, governor.is_over))
        counts.add(STOP, 1)
    assert seen == [(False, False), (True, False), (True, True)]


@pytest.mark.parametrize(("asked", "slack"), [(0, 4 * 32 + 4 * 8), (500, 500)])
def test_the_slack_is_four_calls_and_four_turns_or_what_was_asked(asked: int, slack: int) -> None:
    config = Config("CartPole-v1", learner=LearnerConfig(updates_per_call=8), world=WorldConfig(lanes=8))
    assert slack_of(replace(config, local=LocalConfig(slack_steps=asked))) == slack
