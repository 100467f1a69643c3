"""Returns and lengths with many lanes, against a count by hand."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from freewheel.errors import CheckpointError
from freewheel.report.episodes import Episode, Episodes


def ended(*pairs: tuple[int, float]) -> SimpleNamespace:
    return SimpleNamespace(
        lanes=np.array([p[0] for p in pairs]), reward=np.array([p[1] for p in pairs], np.float32), goes_on=None
    )


def add(
    episodes: Episodes, rows: dict[int, float], first: set[int] = frozenset(), over: object = None
) -> list[Episode]:  # type: ignore[assignment]
    lanes = np.array(list(rows), np.int64)
    flags = np.array([lane in first for lane in rows], bool)
    return episodes.add(lanes, np.array(list(rows.values()), np.float32), flags, over, step=5, seconds=0.5)  # type: ignore[arg-type]


def test_lanes_are_counted_apart() -> None:
    episodes = Episodes(3)
    assert episodes.window.mean is None
    assert add(episodes, {0: 0, 1: 0, 2: 0}, first={0, 1, 2}) == []
    assert add(episodes, {2: 1.0, 0: 10.0}) == []
    # Lane 2 ends and is reset in the same recv; lane 1 steps for the first time.
    assert add(episodes, {1: 100.0, 2: 0.0}, first={2}, over=ended((2, 2.0))) == [Episode(2, 3.0, 2, 5, 0.5)]
    # Lane 0 and 1 end; they come back in a later recv.
    assert add(episodes, {2: 7.0}, over=ended((1, 1.0), (0, 5.0))) == [
        Episode(1, 101.0, 2, 5, 0.5),
        Episode(0, 15.0, 2, 5, 0.5),
    ]
    add(episodes, {0: 0.0, 1: 0.0}, first={0, 1})
    assert add(episodes, {}, over=ended((2, 1.0), (0, -1.0))) == [
        Episode(2, 8.0, 2, 5, 0.5),
        Episode(0, -1.0, 1, 5, 0.5),
    ]
    assert episodes.window.num_finished == 5
    assert episodes.window.mean == pytest.approx((3 + 101 + 15 + 8 - 1) / 5)


def test_what_comes_with_a_first_row_is_no_reward() -> None:
    episodes = Episodes(1)
    add(episodes, {0: 99.0}, first={0})
    assert add(episodes, {}, over=ended((0, 1.0)))[0].ret == 1.0
    # Begun anew without an end: what was counted belongs to no episode.
    add(episodes, {0: 5.0}, first={0})
    add(episodes, {0: 5.0})
    add(episodes, {0: 5.0}, first={0})
    assert add(episodes, {}, over=ended((0, 2.0)))[0] == Episode(0, 2.0, 1, 5, 0.5)


def test_against_a_plain_count() -> None:
    rng = np.random.default_rng(3)
    episodes, running, expected, got = Episodes(5), [[] for _ in range(5)], [], []
    waiting = set(range(5))
    for _ in range(2_000):
        stepped = [int(lane) for lane in rng.permutation(5) if lane not in waiting and rng.random() < 0.7]
        over = [lane for lane in stepped if rng.random() < 0.1]
        rewards = {lane: float(np.float32(rng.normal())) for lane in stepped}
        for lane in stepped:
            running[lane].append(rewards[lane])
        for lane in over:
            expected.append((lane, sum(running[lane]), len(running[lane])))
            running[lane] = []
        waiting |= set(over)
        begun = {lane for lane in waiting if rng.random() < 0.5}
        waiting -= begun
        rows = {lane: rewards[lane] for lane in stepped if lane not in over} | dict.fromkeys(begun, 0.0)
        got += add(episodes, rows, begun, ended(*((lane, rewards[lane]) for lane in over)) if over else None)
    assert [(episode.lane, episode.length) for episode in got] == [(lane, length) for lane, _, length in expected]
    assert [episode.ret for episode in got] == [ret for _, ret, _ in expected]
    assert list(episodes.window.returns) == [ret for _, ret, _ in expected][-100:]
    assert len(expected) > 500


def test_a_long_episode_is_summed_exactly() -> None:
    episodes = Episodes(1)
    for _ in range(20_000):
        add(episodes, {0: 0.1})
    assert add(episodes, {}, over=ended((0, 1e8)))[0].ret == pytest.approx(
        20_000 * float(np.float32(0.1)) + 1e8, rel=1e-12
    )


def test_a_saved_state_goes_on_exactly() -> None:
    one, other = Episodes(2), Episodes(2)
    for i in range(130):
        add(one, {0: 0.1 * i, 1: 0.3})
        add(one, {}, over=ended((0, 0.7)))
    other.set_state(json.loads(json.dumps(one.state())))
    assert other.state() == one.state()
    assert other.window.mean == one.window.mean
    assert add(other, {}, over=ended((1, 0.1))) == add(one, {}, over=ended((1, 0.1)))
    add(one, {0: 3.0, 1: 3.0})
    one.forget_running(np.array([1]))
    assert [episode.ret for episode in add(one, {}, over=ended((1, 0.5), (0, 0.5)))] == [0.5, 3.5]


@pytest.mark.parametrize(
    "change", [{"returns": [1.0]}, {"lengths": None}, {"last_returns": ["x"]}, {"num_finished": None}]
)
def test_a_state_of_another_run_is_refused(change: dict[str, object]) -> None:
    episodes = Episodes(2)
    before = episodes.state()
    with pytest.raises(CheckpointError, match="episode counts"):
        episodes.set_state(before | change)
    assert episodes.state() == before


def test_lanes_in_another_order_count_as_well_as_all_lanes_in_order() -> None:
    """The array that names all lanes in order is known again; another one is read."""
    episodes = Episodes(3)
    everybody, first = np.arange(3), np.zeros(3, np.bool_)
    for lanes in (everybody, everybody, np.array([2, 0, 1]), np.arange(3), everybody):
        episodes.add(lanes, lanes.astype(np.float32), first)
    state = episodes.state()
    assert state["returns"] == [0.0, 5.0, 10.0]
    assert state["lengths"] == [5, 5, 5]
