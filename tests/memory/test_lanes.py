"""Lanes: what a row is, who may write it, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from freewheel.errors import ConfigError, ReplayError
from freewheel.memory.lanes import Lanes, Writer, forecast_bytes
from freewheel.memory.replay import LEAST_PRIORITY, Replay
from freewheel.spec import RowSpec, flatten

SPEC = RowSpec.of(spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(4))


def rows(n: int, **changed: Any) -> dict[str, Any]:
    """Arguments of an append of n good rows for lane 0, some of them changed."""
    good = {
        "lanes": np.zeros(n, np.int64),
        "fields": {"obs": np.ones((n, 3), np.float32), "action": np.arange(n)},
        "reward": np.ones(n, np.float32),
        "terminated": np.zeros(n, bool),
        "truncated": np.zeros(n, bool),
    }
    fields = {**good["fields"], **changed.pop("fields", {})}  # type: ignore[dict-item]
    return {**good, "fields": fields, **changed}


def test_a_lane_that_begins_again_is_cut_before_the_row_whose_outcome_is_unknown() -> None:
    lanes = Lanes(SPEC, 2, 10)
    writer = lanes.writer()
    writer.append(**rows(3))
    writer.append(**rows(2, lanes=np.ones(2, np.int64)))
    writer.begin(np.array([0]))
    writer.append(**rows(3, reward=np.full(3, 7, np.float32)))
    replay = Replay(lanes, 5, gamma=0.5, n_step=2, seed=1)
    batches = [replay.sample() for _ in range(20)]
    found = {(int(b.lane[i]), int(b.row[i]), int(b.steps[i]), float(b.reward[i])) for b in batches for i in range(5)}
    # Row 2 has no outcome. Lane 1 has not begun again, and the two steps of its rows are not there yet.
    assert found == {(0, 0, 2, 1.5), (0, 1, 1, 1.0), (0, 3, 2, 10.5)}
    with pytest.raises(ReplayError, match="lane 2 does not exist"):
        writer.begin(np.array([2]))
    with pytest.raises(ReplayError, match="was not opened"):
        lanes.writer([1]).begin(np.array([0]))


BAD = {
    "shape": (
        {"fields": {"obs": np.ones((4, 2), np.float32)}},
        r"obs must be float32\[4,3\], not float32\[4,2\]",
    ),
    "dtype": ({"fields": {"obs": np.ones((4, 3))}}, r"obs must be float32\[4,3\], not float64\[4,3\]"),
    "too few rows": ({"reward": np.ones(3, np.float32)}, r"reward must be float32\[4\], not float32\[3\]"),
    "reward dtype": ({"reward": np.ones(4)}, "reward must be float32"),
    "flag dtype": ({"terminated": np.zeros(4, np.int8)}, r"terminated must be bool\[4\], not int8\[4\]"),
    "gaps": ({"fields": {"obs": np.ones((4, 6), np.float32)[:, ::2]}}, "obs must be a C-contiguous .* gaps"),
    "a list": ({"reward": [1.0] * 4}, "reward must be a C-contiguous array of .*, not list"),
    "lane too high": ({"lanes": np.array([0, 0, 2, 0])}, "lane 2 does not exist: there are lanes 0 to 1"),
    "lane negative": ({"lanes": np.array([0, -1, 0, 0])}, "lane -1 does not exist"),
    "lane dtype": ({"lanes": np.zeros(4, np.int32)}, r"lanes must be int64\[4\], not int32\[4\]"),
    "field unknown": (
        {"fields": {"observation": np.ones(4)}},
        "fields obs, action; these were given: .*observation",
    ),
    "priority NaN": ({"priority": np.array([1, np.nan, 1, 1], np.float32)}, r"priority\[1\]=nan"),
    "priority negative": ({"priority": np.array([1, 1, -2, 1], np.float32)}, r"priority\[2\]=-2"),
    "priority infinite": ({"priority": np.array([np.inf, 1, 1, 1], np.float32)}, r"priority\[0\]=inf"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_rows_are_refused_and_nothing_is_written(case: str) -> None:
    changed, message = BAD[case]
    lanes = Lanes(SPEC, 2, 10)
    writer = lanes.writer()
    writer.append(**rows(2))
    with pytest.raises(ReplayError, match=message):
        writer.append(**rows(4, **changed))
    assert lanes.rows_written() == 2
    writer.append(**rows(4))  # and the writer goes on
    assert lanes.rows_written() == 6


def test_a_missing_field_is_named() -> None:
    writer = Lanes(SPEC, 1, 10).writer()
    with pytest.raises(ReplayError, match="fields obs, action; these were given: obs"):
        writer.append(np.zeros(1, np.int64), {"obs": np.ones((1, 3), np.float32)}, *[np.zeros(1, np.float32)] * 3)


def test_a_writer_writes_only_the_lanes_it_opened() -> None:
    lanes = Lanes(SPEC, 2, 10)
    with pytest.raises(ReplayError, match="lane 0 was not opened by this writer"):
        lanes.writer([1]).append(**rows(1))
    with pytest.raises(ReplayError, match="lane 5 does not exist"):
        lanes.writer([5])


def test_a_replaced_writer_is_refused() -> None:
    lanes = Lanes(SPEC, 1, 10)
    old = lanes.writer()
    old.append(**rows(3))
    new = lanes.writer()
    with pytest.raises(ReplayError, match=r"lane 0 was given to another writer \(epoch 2, this one has 1\)"):
        old.append(**rows(1))
    assert lanes.rows_written() == 3
    new.append(**rows(1))
    assert (old.epoch(0), new.epoch(0)) == (1, 2)


def test_an_episode_cut_by_a_new_writer_is_not_bridged() -> None:
    lanes = Lanes(SPEC, 1, 10)
    lanes.writer().append(**rows(3, reward=np.array([0, 1, 2], np.float32)))
    lanes.writer().append(**rows(3, reward=np.array([9, 9, 9], np.float32)))
    replay = Replay(lanes, 6, n_step=5, gamma=0.5)
    drawn = set()
    for _ in range(50):
        batch = replay.sample()
        drawn |= set(zip(batch.row.tolist(), batch.reward.tolist(), batch.discount.tolist(), strict=True))
    # Row 2 was never followed by its next step, and the new episode is not five steps long yet.
    assert drawn == {(0, 1 + 0.5 * 2, 0.25), (1, 2.0, 0.5)}


def test_hand_solved_three_step_returns() -> None:
    """Rewards arrive with the next observation: obs 0 -a0-> (r 1, obs 1) -a1-> (r 2, obs 2) -a2-> (r 4, obs 3, end)."""
    for terminated in (True, False):
        lanes = Lanes(RowSpec.of(spaces.Discrete(9), spaces.Discrete(9)), 1, 20)
        last = np.array([False, False, False, True])
        lanes.writer().append(
            np.zeros(4, np.int64),
            {"obs": np.arange(4), "action": np.arange(4) + 5},
            np.array([0, 1, 2, 4], np.float32),
            last & terminated,
            last & (not terminated),
        )
        replay = Replay(lanes, 3, n_step=2, gamma=0.5)
        rows_seen = {}
        for _ in range(40):
            batch = replay.sample()
            for i in range(3):
                rows_seen[batch.obs[i].item()] = tuple(
                    column[i].item()
                    for column in (batch.action, batch.reward, batch.discount, batch.next_obs, batch.steps)
                )
        bootstrap = 0.0 if terminated else 1.0
        assert rows_seen == {
            0: (5, 1 + 0.5 * 2, 0.25, 2, 2),
            1: (6, 2 + 0.5 * 4, 0.25 * bootstrap, 3, 2),
            2: (7, 4.0, 0.5 * bootstrap, 3, 1),
        }


@pytest.mark.parametrize("first_row", [0, 2**32 - 1000, 2**64 - 1000])
def test_f20_row_numbers_past_their_limits(first_row: int) -> None:
    lanes = Lanes(RowSpec.of(spaces.Box(0, 1e18, (), np.int64), spaces.Discrete(2)), 2, 300, first_row=first_row)
    writer = lanes.writer()
    replay = Replay(lanes, 64, n_step=3, prioritized=True)
    one = np.zeros(1, np.int64)
    for i in range(2500):
        for lane in (0, 1):
            writer.append(
                np.array([lane]),
                {"obs": np.array([i]), "action": one},
                np.ones(1, np.float32),
                np.zeros(1, bool),
                np.array([i % 50 == 49]),
            )
        if i > 100 and i % 10 == 0:
            batch = replay.sample()
            number = (batch.array("row").view(np.uint64) - np.uint64(first_row)).astype(np.int64)
            np.testing.assert_array_equal(number, batch.obs.numpy())
            np.testing.assert_array_equal(batch.next_obs.numpy() - batch.obs.numpy(), batch.steps.numpy())
            assert batch.age.max() <= 301
            replay.update_priorities(batch, np.full(64, 2.0, np.float32))
    assert replay.stats()["stale_priorities"] == 0


def test_what_a_replay_refuses() -> None:
    lanes = Lanes(SPEC, 2, 10)
    with pytest.raises(ReplayError, match="batch of 4 was asked for, but the replay holds 0 rows"):
        Replay(lanes, 4).sample()
    lanes.writer().append(**rows(3))
    with pytest.raises(ReplayError, match="batch of 4 was asked for, but the replay holds 3 rows"):
        Replay(lanes, 4).sample()
    with pytest.raises(ReplayError, match="a lane keeps 10 rows, but n_step=10 with stack=1 needs at least 11"):
        Replay(lanes, 4, n_step=10)
    with pytest.raises(ReplayError, match="no row could be drawn"):
        Replay(lanes, 1, n_step=5).sample()
    for name, value in {
        "batch_size": 0,
        "n_step": 0,
        "stack": 0,
        "gamma": 1.5,
        "alpha": -1,
        "prefetch": -1,
        "pad": "x",
    }.items():
        with pytest.raises(ConfigError, match=name):
            Replay(lanes, **{"batch_size": 2, name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [np.nan, np.inf, -0.5])
def test_bad_priorities_are_refused_and_nothing_changes(value: float) -> None:
    lanes = Lanes(SPEC, 1, 50)
    lanes.writer().append(**rows(20))
    replay = Replay(lanes, 4, prioritized=True)
    batch = replay.sample()
    with pytest.raises(ReplayError, match=r"priority\[2\]=.* Nothing was changed"):
        replay.update_priorities(batch, np.array([9, 9, value, 9], np.float32))
    with pytest.raises(ReplayError, match=r"priorities must be float32\[4\], not float32\[3\]"):
        replay.update_priorities(batch, np.ones(3, np.float32))
    with pytest.raises(ReplayError, match="drawn from another replay"):
        Replay(lanes, 4, prioritized=True).update_priorities(batch, np.ones(4, np.float32))
    with pytest.raises(ReplayError, match="priorities must be float32"):
        replay.update_priorities(batch, np.ones(4))
    assert replay.sample().weight.unique().tolist() == [1.0]


def give_zero(replay: Replay, times: int) -> None:
    for _ in range(times):
        replay.update_priorities(replay.sample(), np.zeros(3, np.float32))


def test_all_priorities_zero_is_said() -> None:
    lanes = Lanes(SPEC, 1, 50)
    lanes.writer().append(**rows(3))
    with pytest.raises(ReplayError, match="all priorities are 0"):
        give_zero(Replay(lanes, 3, prioritized=True), 20)


def test_a_prefetching_replay_gets_over_its_errors() -> None:
    lanes = Lanes(SPEC, 1, 50)
    replay = Replay(lanes, 4, prefetch=2)
    for _ in range(3):
        with pytest.raises(ReplayError, match="holds 0 rows"):
            replay.sample()
    lanes.writer().append(**rows(20))
    assert len(replay.sample().reward) == 4
    replay.close()


@pytest.mark.parametrize("prefetch", [0, 1])
def test_a_closed_replay_says_so(prefetch: int) -> None:
    lanes = Lanes(SPEC, 1, 50)
    lanes.writer().append(**rows(20))
    replay = Replay(lanes, 4, prefetch=prefetch)
    batch = replay.sample()
    replay.close()
    with pytest.raises(ReplayError, match="this replay was closed"):
        replay.sample()
    assert len(batch.reward) == 4


def test_bad_sizes_are_refused() -> None:
    with pytest.raises(ConfigError, match="num_lanes=0"):
        Lanes(SPEC, 0, 10)
    with pytest.raises(ConfigError, match="lane_rows=1"):
        Lanes(SPEC, 1, 1)


def test_memory_is_forecast_and_each_frame_is_kept_once() -> None:
    frames = RowSpec.of(spaces.Box(0, 255, (84, 84), np.uint8), spaces.Discrete(6))
    assert forecast_bytes(frames, 4, 250_000) < 7.5e9
    lanes = Lanes(frames, 1, 100)
    assert lanes.nbytes == forecast_bytes(frames, 1, 100) < 101 * (84 * 84 + 64) + 1000


def test_nested_spaces_become_named_fields() -> None:
    space = spaces.Dict(
        bag=spaces.Tuple((spaces.Discrete(3), spaces.MultiBinary(2))),
        pos=spaces.Box(0, 1, (2, 2), np.float64),
    )
    spec = RowSpec.of(space, spaces.Tuple((spaces.Discrete(4), spaces.Box(-1, 1, (1,), np.float32))))
    assert [(f.name, f.dtype, f.shape, f.is_observation) for f in spec.fields] == [
        ("obs.bag.0", "int64", (), True),
        ("obs.bag.1", "int8", (2,), True),
        ("obs.pos", "float64", (2, 2), True),
        ("action.0", "int64", (), False),
        ("action.1", "float32", (1,), False),
    ]
    space.seed(0)
    values = [space.sample() for _ in range(3)]
    batched = {
        "bag": (np.stack([v["bag"][0] for v in values]), np.stack([v["bag"][1] for v in values])),
        "pos": np.stack([v["pos"] for v in values]),
    }
    assert {name: (a.shape, str(a.dtype)) for name, a in flatten("obs", space, batched).items()} == {
        "obs.bag.0": ((3,), "int64"),
        "obs.bag.1": ((3, 2), "int8"),
        "obs.pos": ((3, 2, 2), "float64"),
    }


def test_spaces_that_cannot_be_rows_are_refused() -> None:
    with pytest.raises(ConfigError, match="space obs is Text"):
        RowSpec.of(spaces.Text(5), spaces.Discrete(2))
    with pytest.raises(ConfigError, match=r"space obs.a has shape \(0,\)"):
        RowSpec.of(spaces.Dict(a=spaces.Box(0, 1, (0,), np.float32)), spaces.Discrete(2))
    with pytest.raises(ConfigError, match="extra column 'action' needs another name"):
        RowSpec.of(spaces.Discrete(2), spaces.Discrete(2), extra={"action": ("float32", ())})


def test_batches_say_what_they_have() -> None:
    lanes = Lanes(SPEC, 1, 50)
    lanes.writer().append(**rows(20))
    with pytest.raises(AttributeError, match="a batch has obs, action, next_obs, reward.*not 'state'"):
        Replay(lanes, 4).sample().state  # noqa: B018


def test_a_lane_may_come_more_than_once_in_a_call() -> None:
    lanes = Lanes(SPEC, 2, 50)
    writer: Writer = lanes.writer()
    writer.append(**rows(4, lanes=np.array([0, 1, 0, 0]), truncated=np.array([False, False, True, False])))
    batch = Replay(lanes, 1).sample()
    assert (batch.lane.item(), batch.row.item(), batch.steps.item(), batch.reward.item()) == (0, 0, 1, 1.0)


def filled(n: int) -> Lanes:
    lanes = Lanes(SPEC, 1, 50)
    lanes.writer().append(**rows(n))
    return lanes


def test_errors_in_pieces_are_the_priorities_of_the_joined_batch() -> None:
    joined, pieces = (Replay(filled(20), 6, prioritized=True, seed=3) for _ in range(2))
    errors = torch.tensor([0.5, torch.nan, 2.0, torch.inf, -1.0, 0.0])
    joined.update_priorities(joined.sample(), torch.tensor([0.5, 0, 2, 0, 0, 0]) + LEAST_PRIORITY)
    # As they come: of another type, with gaps, with a gradient.
    pieces.update_errors(pieces.sample(), [errors[:3].double(), errors[3:].repeat_interleave(2)[::2].requires_grad_()])
    assert joined.state() == pieces.state()
    for _ in range(20):
        one, other = joined.sample(), pieces.sample()
        assert one.row.tolist() == other.row.tolist()
        assert one.weight.tolist() == other.weight.tolist()


def test_errors_that_are_not_a_batch_are_refused() -> None:
    lanes = filled(20)
    replay = Replay(lanes, 6, prioritized=True)
    batch = replay.sample()
    for sizes in ((6, 6), (2, 4), (5,), ()):
        with pytest.raises((ConfigError, ReplayError), match="batch of 6"):
            replay.update_errors(batch, [torch.ones(size) for size in sizes])
    with pytest.raises(ReplayError, match="drawn from another replay"):
        Replay(lanes, 6, prioritized=True).update_errors(batch, [torch.ones(6)])
