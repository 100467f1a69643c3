"""The replay against a naive one: random episodes, n-steps, stacks, dtypes, wrap-around, replaced writers."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from naive import NaiveLane, Sample
from scipy import stats

from freewheel.errors import ReplayError
from freewheel.memory.lanes import Lanes, Writer
from freewheel.memory.replay import Replay
from freewheel.memory.replay_batch import ReplayBatch
from freewheel.spec import RowSpec

OBS = spaces.Dict(
    {
        "image": spaces.Box(0, 255, (3, 5), np.uint8),
        "pos": spaces.Box(-np.inf, np.inf, (2,), np.float32),
        "goal": spaces.Tuple((spaces.Discrete(7), spaces.MultiBinary(3))),
        "precise": spaces.Box(-np.inf, np.inf, (), np.float64),
    }
)
ACTION = spaces.MultiDiscrete([4, 3, 2])
SPEC = RowSpec.of(OBS, ACTION, extra={"logp": ("float32", ())})
STARTS = [0, 2**32 - 9, 2**64 - 9]


def content(lane: int, count: int) -> dict[str, Any]:
    """Fields that differ for every row ever written."""
    rng = np.random.default_rng([lane, count])
    return {
        "obs.image": rng.integers(0, 256, (3, 5), dtype=np.uint8),
        "obs.pos": rng.standard_normal(2).astype(np.float32),
        "obs.goal.0": np.int64(rng.integers(7)),
        "obs.goal.1": rng.integers(0, 2, 3).astype(np.int8),
        "obs.precise": np.float64(rng.standard_normal()),
        "action": rng.integers(0, 2, 3).astype(np.int64),
        "logp": np.float32(rng.standard_normal()),
    }


class Pair:
    """The real lanes and the naive ones, written side by side."""

    def __init__(self, num_lanes: int, lane_rows: int, first_row: int) -> None:
        self.lanes = Lanes(SPEC, num_lanes, lane_rows, first_row=first_row)
        self.naive = [NaiveLane(lane_rows, first_row) for _ in range(num_lanes)]
        self.writers: list[Writer] = [self.lanes.writer([lane]) for lane in range(num_lanes)]

    def append(self, lane: int, terminated: bool = False, truncated: bool = False) -> None:
        naive = self.naive[lane]
        fields = content(lane, len(naive.rows))
        reward = np.float32(np.random.default_rng([lane, len(naive.rows), 1]).standard_normal())
        version = len(naive.rows) * 3
        self.writers[lane].append(
            np.array([lane]),
            {name: np.asarray(value)[None] for name, value in fields.items()},
            np.array([reward]),
            np.array([terminated]),
            np.array([truncated]),
            version,
        )
        obs = {name: value for name, value in fields.items() if name.startswith("obs.")}
        naive.append(obs, (fields["action"], fields["logp"]), float(reward), terminated, truncated, version)

    def reopen(self, lane: int) -> None:
        self.writers[lane] = self.lanes.writer([lane])
        self.naive[lane].reopen()

    def samples(self, n_step: int, gamma: float, stack: int, pad: str) -> dict[tuple[int, int], Sample]:
        return {
            (lane, number): sample
            for lane, naive in enumerate(self.naive)
            for number, sample in naive.samples(n_step, gamma, stack, pad).items()
        }


def assert_same(batch: ReplayBatch, expected: dict[tuple[int, int], Sample]) -> None:
    lanes, rows = batch.array("lane"), batch.array("row").view(np.uint64)
    for i in range(len(lanes)):
        key = int(lanes[i]), int(rows[i])
        assert key in expected, f"row {key} may not be drawn"
        want = expected[key]
        assert batch.reward[i].item() == pytest.approx(want.reward, rel=1e-6, abs=1e-6)
        assert batch.discount[i].item() == np.float32(want.discount)
        assert batch.steps[i].item() == want.steps
        assert batch.version[i].item() == want.version
        assert batch.age[i].item() == want.age
        for name, value in want.obs.items():
            np.testing.assert_array_equal(batch.array(name)[i], value)
            np.testing.assert_array_equal(batch.array(f"next_{name}")[i], want.next_obs[name])
        np.testing.assert_array_equal(batch.action[i].numpy(), want.action[0])
        assert batch.logp[i].item() == want.action[1]


EVENTS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(["step"] * 6 + ["burst", "burst", "terminate", "truncate", "both", "reopen", "sample"]),
    ),
    min_size=10,
    max_size=120,
)


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    events=EVENTS,
    num_lanes=st.integers(1, 3),
    extra_rows=st.integers(1, 30),
    n_step=st.integers(1, 10),
    stack=st.integers(1, 8),
    pad=st.sampled_from(["first", "zero"]),
    first_row=st.sampled_from(STARTS),
    prioritized=st.booleans(),
    seed=st.integers(0, 2**64 - 1),
)
def test_every_batch_equals_the_naive_replay(
    events: list[tuple[int, str]],
    num_lanes: int,
    extra_rows: int,
    n_step: int,
    stack: int,
    pad: Any,
    first_row: int,
    prioritized: bool,
    seed: int,
) -> None:
    pair = Pair(num_lanes, n_step + stack + extra_rows, first_row)
    gamma = 0.9
    replay = Replay(pair.lanes, 4, n_step=n_step, gamma=gamma, stack=stack, pad=pad, prioritized=prioritized, seed=seed)
    for lane, kind in [*events, (0, "sample")]:
        lane %= num_lanes
        if kind == "reopen":
            pair.reopen(lane)
        elif kind == "sample":
            expected = pair.samples(n_step, gamma, stack, pad)
            if not expected:
                with pytest.raises(ReplayError):
                    replay.sample()
            elif sum(min(len(naive.rows), naive.lane_rows) for naive in pair.naive) >= 4 + num_lanes * stack:
                batch = replay.sample(beta=0.5)
                assert_same(batch, expected)
                replay.update_priorities(batch, np.random.default_rng(lane).random(4).astype(np.float32))
        elif kind == "burst":
            for _ in range(7):
                pair.append(lane)
        else:
            pair.append(lane, kind in ("terminate", "both"), kind in ("truncate", "both"))


def filled(num_lanes: int = 3, rows: int = 200, lane_rows: int = 90) -> Pair:
    pair = Pair(num_lanes, lane_rows, 0)
    rng = np.random.default_rng(5)
    for lane in range(num_lanes):
        for _ in range(rows + 11 * lane):
            end = rng.random()
            pair.append(lane, end < 0.08, 0.06 < end < 0.14)
    return pair


@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize(
    "lane_rows", [90, 224, 400]
)  # wrapped; all but full, where stacks reach into the ring's seam; half empty
@pytest.mark.parametrize(("n_step", "stack"), [(1, 1), (3, 1), (1, 4), (4, 3)])
def test_draws_reach_every_start_equally(n_step: int, stack: int, lane_rows: int, prioritized: bool) -> None:
    pair = filled(lane_rows=lane_rows)
    expected = pair.samples(n_step, 0.99, stack, "first")
    replay = Replay(pair.lanes, 200, n_step=n_step, stack=stack, prioritized=prioritized, seed=3)
    counts = dict.fromkeys(expected, 0)
    for _ in range(200):
        batch = replay.sample()
        for key in zip(batch.array("lane").tolist(), batch.array("row").tolist(), strict=True):
            counts[key] += 1
        if prioritized:
            replay.update_priorities(batch, np.ones(200, np.float32))
    assert stats.chisquare(list(counts.values())).pvalue > 0.001
    assert replay.stats()["redraws"] == replay.stats()["stale_priorities"] == 0


def test_prioritized_draws_follow_the_priorities_and_weights_the_paper() -> None:
    pair = filled(num_lanes=2)
    alpha, beta = 0.7, 0.55
    expected = pair.samples(2, 0.99, 1, "first")
    replay = Replay(pair.lanes, 100, n_step=2, prioritized=True, alpha=alpha, seed=1)
    rng = np.random.default_rng(0)
    priority = {key: np.float32(0 if i % 9 == 0 else rng.exponential()) for i, key in enumerate(expected)}
    for _ in range(300):  # until every row has been drawn and given its own
        batch = replay.sample()
        keys = list(zip(batch.array("lane").tolist(), batch.array("row").tolist(), strict=True))
        replay.update_priorities(batch, np.array([priority[key] for key in keys], np.float32))
    weights = {key: float(value) ** alpha for key, value in priority.items() if value > 0}
    total = sum(weights.values())
    counts = dict.fromkeys(weights, 0)
    draws = 0
    for _ in range(500):
        batch = replay.sample(beta=beta)
        keys = list(zip(batch.array("lane").tolist(), batch.array("row").tolist(), strict=True))
        chance = np.array([weights[key] / total for key in keys])  # a zero priority would be missing here
        want = (len(weights) * chance) ** -beta
        np.testing.assert_allclose(batch.weight.numpy(), want / want.max(), rtol=2e-5)
        for key in keys:
            counts[key] += 1
        draws += len(keys)
    expected_counts = np.array([weights[key] / total * draws for key in counts])
    assert stats.chisquare(np.array(list(counts.values())), expected_counts).pvalue > 0.001


def test_a_rebuilt_tree_draws_the_same() -> None:
    pair = filled()
    first = Replay(pair.lanes, 64, prioritized=True, seed=9)
    rng = np.random.default_rng(0)
    for _ in range(40):
        first.update_priorities(first.sample(), rng.exponential(size=64).astype(np.float32))
    second = Replay(pair.lanes, 64, prioritized=True, seed=4)  # as a restarted learner would
    second.set_state(first.state())
    for _ in range(10):
        one, two = first.sample(), second.sample()
        np.testing.assert_array_equal(one.array("row"), two.array("row"))
        np.testing.assert_array_equal(one.array("weight"), two.array("weight"))


def test_a_prefetching_replay_has_no_random_state_to_save() -> None:
    replay = Replay(filled().lanes, 8, prefetch=1)
    assert replay.state() == {"max_priority": 1.0}
    replay.set_state({"max_priority": 7.5})
    assert replay.state() == {"max_priority": 7.5}
    with pytest.raises(ReplayError, match="prefetch=0"):
        replay.set_state({"random": [1, 2, 3, 4], "max_priority": 1.0})
    replay.close()


@pytest.mark.parametrize("prioritized", [False, True])
def test_same_rows_and_seed_give_the_same_batches(prioritized: bool) -> None:
    pair = filled()
    one, two, other = (Replay(pair.lanes, 32, prioritized=prioritized, seed=s) for s in (7, 7, 8))
    same = [(one.sample(), two.sample()) for _ in range(5)]
    assert all((a.array("row") == b.array("row")).all() for a, b in same)
    assert any((a.array("row") != other.sample().array("row")).any() for a, _ in same)


def test_the_draw_can_be_switched_at_run_time() -> None:
    pair = filled()
    replay = Replay(pair.lanes, 32, seed=0)
    assert replay.sample().weight.unique().tolist() == [1.0]
    replay.prioritized = True
    batch = replay.sample()
    replay.update_priorities(batch, np.linspace(0.1, 5, 32, dtype=np.float32))
    assert len(replay.sample().weight.unique()) > 1
    replay.prioritized = False
    assert replay.sample().weight.unique().tolist() == [1.0]


def keys_of(batch: ReplayBatch) -> list[tuple[int, int]]:
    return list(zip(batch.array("lane").tolist(), batch.array("row").tolist(), strict=True))


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("begins_prioritized", [True, False])
def test_rows_and_priorities_are_right_after_draws_were_uniform_for_a_while(
    begins_prioritized: bool, prefetch: int
) -> None:
    """Meanwhile no row enters the tree: lanes stand still, move on, or go round, one of them many times."""
    pair, alpha, rng = filled(num_lanes=4), 0.6, np.random.default_rng(3)
    replay = Replay(pair.lanes, 64, prioritized=begins_prioritized, alpha=alpha, seed=5, prefetch=prefetch)
    priority: dict[tuple[int, int], float] = {}
    largest = 1.0
    for _ in range(3):
        replay.prioritized = True
        for _ in range(2 * (prefetch + 1)):
            replay.sample()
        for key in pair.samples(1, 0.99, 1, "first"):
            priority.setdefault(key, largest)  # a row that was given none takes the largest so far
        for _ in range(40):
            batch, errors = replay.sample(), rng.exponential(3, 64).astype(np.float32)
            want = [priority[key] ** alpha for key in keys_of(batch)]
            if prefetch == 0:
                np.testing.assert_allclose(batch.array("chance"), want, rtol=1e-5)
            replay.update_priorities(batch, errors)
            priority |= zip(keys_of(batch), errors.tolist(), strict=True)
            largest = max(largest, float(errors.max()))
        for _ in range(prefetch + 1):
            batch = replay.sample()
        np.testing.assert_allclose(batch.array("chance"), [priority[key] ** alpha for key in keys_of(batch)], rtol=1e-5)
        replay.prioritized = False
        for lane, count in enumerate((0, 25, 89, 400)):
            for _ in range(count):
                pair.append(lane, truncated=rng.random() < 0.1)
        for _ in range(2 * (prefetch + 1)):
            uniform = replay.sample()
        assert uniform.weight.unique().tolist() == [1.0]
        # What comes late for rows that are gone marks nothing, though the tree has not heard that they are.
        before, gone = replay.stats()["stale_priorities"], sum(lane == 3 for lane, _ in keys_of(batch))
        replay.update_priorities(batch, batch.array("chance") ** np.float32(1 / alpha))
        for _ in range(prefetch + 1):
            replay.sample()
        assert replay.stats()["stale_priorities"] - before >= gone > 0
    replay.close()


def test_a_row_can_come_with_its_priority() -> None:
    lanes = Lanes(RowSpec.of(spaces.Discrete(100), spaces.Discrete(2)), 1, 50)
    n = 20
    priority = np.zeros(n, np.float32)
    priority[7] = 3.0
    lanes.writer().append(
        np.zeros(n, np.int64),
        {"obs": np.arange(n), "action": np.zeros(n, np.int64)},
        np.zeros(n, np.float32),
        np.zeros(n, bool),
        np.zeros(n, bool),
        priority=priority,
    )
    assert Replay(lanes, 10, prioritized=True).sample().obs.tolist() == [7] * 10


def test_priorities_of_overwritten_rows_are_ignored_and_counted() -> None:
    pair = filled(num_lanes=1)
    replay = Replay(pair.lanes, 32, prioritized=True, seed=0)
    old = replay.sample()
    for _ in range(200):
        pair.append(0)
    replay.sample()
    replay.update_priorities(old, np.full(32, 1e9, np.float32))
    assert replay.stats()["stale_priorities"] == 32
    assert replay.sample().weight.unique().tolist() == [1.0]  # nobody got that priority


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_batches_in_use_are_never_refilled(prefetch: int) -> None:
    pair = filled()
    expected = pair.samples(1, 0.99, 1, "first")
    replay = Replay(pair.lanes, 16, prefetch=prefetch)
    kept = [replay.sample() for _ in range(8)]
    tensors = [replay.sample().obs["image"] for _ in range(8)]  # their batches are dropped at once
    copies = [tensor.clone() for tensor in tensors]
    for _ in range(50):
        replay.sample()
    for batch in kept:
        assert_same(batch, expected)
    assert all(torch.equal(a, b) for a, b in zip(tensors, copies, strict=True))
    replay.close()


def test_buffers_are_used_again_when_let_go() -> None:
    pair = filled()
    replay = Replay(pair.lanes, 16)
    addresses = {replay.sample().reward.data_ptr() for _ in range(50)}
    assert len(addresses) == 1


def test_tensors_outlive_the_replay() -> None:
    pair = filled()
    replay = Replay(pair.lanes, 16, prefetch=2)
    obs = replay.sample().obs["pos"]
    copy = obs.clone()
    replay.close()
    del replay
    assert torch.equal(obs, copy)


@pytest.mark.parametrize("prioritized", [False, True])
def test_prefetched_batches_are_right_while_rows_arrive(prioritized: bool) -> None:
    pair = Pair(2, 60, 2**64 - 100)
    for lane in (0, 1):
        for i in range(70):
            pair.append(lane, truncated=i % 13 == 12)
    replay = Replay(pair.lanes, 16, n_step=3, gamma=0.9, stack=2, prioritized=prioritized, prefetch=2)
    stop = threading.Event()

    def write() -> None:
        count = 0
        while not stop.is_set() and count < 5000:
            pair.append(count % 2, terminated=count % 17 == 16)
            count += 1

    writer = threading.Thread(target=write)
    writer.start()
    batches = []
    for i in range(60):
        batches.append(replay.sample())
        if prioritized:
            replay.update_priorities(batches[-1], np.full(16, 1.0 + i, np.float32))
    stop.set()
    writer.join()
    replay.close()
    # The naive lanes keep all rows; judge each batch as of the row count it was drawn at (its age tells).
    for batch in batches:
        for i in range(16):
            naive = pair.naive[int(batch.lane[i])]
            number = int(batch.array("row").view(np.uint64)[i])
            at = (number - naive.first_row) % 2**64
            want = naive._sample(at, 3, 0.9, 2, "first")
            assert want is not None
            assert batch.reward[i].item() == pytest.approx(want.reward, rel=1e-5, abs=1e-6)
            assert batch.steps[i].item() == want.steps
            for name, value in want.obs.items():
                np.testing.assert_array_equal(batch.array(name)[i], value)
                np.testing.assert_array_equal(batch.array(f"next_{name}")[i], want.next_obs[name])
