"""The ratio: never out of proportion, whoever is faster, and no burst when a run goes on."""

from __future__ import annotations

import threading

import pytest
from gymnasium import spaces
from hypothesis import example, given, settings
from hypothesis import strategies as st

from freewheel.algos.make import make_algo
from freewheel.config import assemble
from freewheel.contracts import Spaces
from freewheel.memory.counts import STEPS, UPDATES, Counts, RunCounts
from freewheel.memory.dials import Dials
from freewheel.memory.ratio_pace import Ratio, RatioPace, slack_of

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


def counts_at(steps: int = 0, updates: int = 0) -> Counts:
    counts = RunCounts(1).of(0)
    counts.add_steps(steps)
    counts.add_updates(updates)
    return counts


@settings(deadline=None)
@given(RATIOS, st.integers(0, 500), st.integers(1, 64), st.lists(st.booleans(), min_size=50, max_size=300))
def test_nobody_gets_ahead_in_any_order(ratio: Ratio, slack: int, lanes: int, turns: list[bool]) -> None:
    """Actors and learner take turns in any order: steps never exceed the updates' by more than slack, a call and a turn."""
    counts = counts_at(updates=ratio.from_updates)
    pace = RatioPace(counts, ratio, slack)
    for acts in turns:
        if acts and pace.may_answer(0):
            counts.add_steps(lanes)
        elif not acts and pace.due():
            pace.learned(ratio.updates_per_call, None)
        assert counts.steps < pace.limit(counts.updates) + lanes
        owed = (counts.updates - ratio.from_updates) * ratio.batch_size
        assert owed <= max(counts.steps - ratio.from_step, 0) * ratio.samples_per_step * (1 + 1e-9) + 1e-6


@settings(deadline=None, max_examples=50)
@given(RATIOS, st.integers(0, 200), st.integers(1, 64))
def test_whoever_waits_waits_for_the_right_count(ratio: Ratio, slack: int, lanes: int) -> None:
    counts = counts_at(updates=ratio.from_updates)
    pace = RatioPace(counts, ratio, slack)
    while pace.may_answer(0):
        counts.add_steps(max(lanes, 1 + int(ratio.steps_per_call)))
    waited: list[tuple[int, int]] = []
    counts.wait = lambda index, target: waited.append((index, target))  # type: ignore[method-assign]
    pace.wait_to_act()
    pace.wait_to_learn()
    (held_by, enough), (fed_by, at) = waited
    assert (held_by, fed_by) == (UPDATES, STEPS)
    assert pace.limit(enough) > counts.steps >= pace.limit(enough - ratio.updates_per_call)
    assert at == ratio.next_at(counts.updates)


def test_free_actors_are_never_held() -> None:
    counts, ratio = counts_at(10**9), Ratio(32, 128, 1, 0)
    assert RatioPace(counts, ratio, 10, is_free=True).may_answer(0)
    assert not RatioPace(counts, ratio, 10).may_answer(0)


def test_the_learner_is_woken_by_steps() -> None:
    counts = counts_at()
    pace = RatioPace(counts, Ratio(32, 128, 1, 0), 10)
    timer = threading.Timer(0.05, lambda: counts.add_steps(4))
    timer.start()
    while not pace.due():
        pace.wait_to_learn()
    timer.join()
    assert pace.backlog() == 1


@pytest.mark.parametrize(("asked", "slack"), [(0, 4 * 32 + 4 * 8), (500, 500)])
def test_the_slack_is_four_calls_and_four_turns_or_what_was_asked(asked: int, slack: int) -> None:
    given = {"learner.updates_per_call": 8, "learner.batch_size": 128, "learner.ratio": 32.0, "world.lanes": 8}
    config = assemble("CartPole-v1", given | {"local.slack_steps": asked, "replay.warmup_rows": 128}, "none")
    algo = make_algo(config, Spaces(spaces.Box(-1, 1, (4,)), spaces.Discrete(2), 8))
    pace = algo.pace(counts_at(), 8, is_local=True)
    assert pace.slack_steps == slack
    assert slack_of(pace.ratio, 8) == 160
    assert not pace.is_free
    assert algo.pace(counts_at(), 8, is_local=False).is_free  # the learner catches up after each turn


def test_the_dial_holds_from_the_step_at_which_it_is_seen() -> None:
    """What was due by the ratio of before is not made good by the other: no burst, no gap."""
    counts, dials = counts_at(1000), Dials()
    pace = RatioPace(counts, Ratio(32, 128, 1, from_step=0), 10, dials=dials)
    assert pace.backlog() == 250
    pace.learned(250, None)
    dials.set("ratio", 64.0, (counts.steps, counts.updates))
    assert pace.backlog() == 0
    assert pace.target == 64.0
    assert pace.state() == {"from_step": 1000, "from_updates": 250}
    counts.add_steps(100)
    assert pace.backlog() == 50
    assert pace.limit(counts.updates) == 1000 + 2 + 10


def test_a_dial_that_is_set_back_gives_the_settings_back() -> None:
    counts, dials = counts_at(1000, 250), Dials()
    pace = RatioPace(counts, Ratio(32, 128, 1, from_step=0), 10, dials=dials)
    dials.set("ratio", 64.0, (counts.steps, counts.updates))
    assert not pace.due()
    dials.set("ratio", None, (counts.steps, counts.updates))
    assert not pace.due()
    counts.add_steps(100)
    assert pace.backlog() == 25
    assert pace.target == 32.0


def test_a_run_that_goes_on_without_its_rows_warms_up_again() -> None:
    counts = counts_at(5000, 1000)
    pace = RatioPace(counts, Ratio(32, 128, 1, from_step=1000), 10)
    assert "collected again" in pace.resume({}, None)[0]
    assert pace.state() == {"from_step": 6000, "from_updates": 1000}
    assert pace.resume({"from_step": 7, "from_updates": 3}, object()) == []
    assert pace.counted_from() == {"from_step": 7, "from_updates": 3}
