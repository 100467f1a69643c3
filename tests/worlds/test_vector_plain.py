"""The core's reading of a vector env's step against the careful one that it stands for."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st
from sole import recv, send

from freewheel._core import StepReader
from freewheel.errors import ReplayError
from freewheel.worlds.vector import HAS_GAPS, WAS_MOVED, VectorWorld
from freewheel.worlds.world import Ready

LANES = 4


class Scripted(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Resets an ended lane as its mode says; what happens is random, and the same for the same seed."""

    def __init__(self, seed: int, ends: float, dtype: Any, obs: Any, in_columns: bool, mode: AutoresetMode) -> None:
        self.metadata = {"autoreset_mode": mode}
        self.num_envs = LANES
        self.single_observation_space = spaces.Box(0, 255, (2, 3), obs)
        self.single_action_space = spaces.Discrete(3)
        self.random, self.ends, self.dtype, self.obs = np.random.default_rng(seed), ends, dtype, obs
        self.in_columns = in_columns
        self.seen: list[Any] = []

    def _look(self) -> Any:
        rows = (100 * self.random.random((LANES, 2, 3))).astype(self.obs)
        return np.asfortranarray(rows) if self.in_columns else rows

    def reset(self, **how: Any) -> tuple[Any, dict[str, Any]]:
        return self._look(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self.seen.append(actions.tolist())
        rewards = self.random.normal(size=LANES).astype(self.dtype)
        terminated, truncated = (self.random.random(LANES) < self.ends for _ in range(2))
        resets_now = self.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
        return self._look(), rewards, terminated, truncated, {"final_obs": self._look()} if resets_now else {}


def told(ready: Ready) -> Any:
    parts = [ready.lanes, ready.obs["obs"], ready.reward, ready.first]
    if ready.ended is not None:
        ended = ready.ended
        parts += [ended.lanes, ended.obs["obs"], ended.reward, ended.terminated, ended.truncated]
    return [(part.dtype.str, part.tolist()) for part in parts]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    ends=st.sampled_from([0.0, 0.1, 0.4, 0.9]),
    dtype=st.sampled_from([np.float64, np.float32, np.int64, np.int32, np.int8]),
    obs=st.sampled_from([np.float32, np.float64, np.uint8]),
    in_columns=st.booleans(),
    mode=st.sampled_from(AutoresetMode),
)
def test_both_readings_give_the_same_rows_and_the_env_the_same_actions(
    seed: int, ends: float, dtype: Any, obs: Any, in_columns: bool, mode: AutoresetMode
) -> None:
    plain, careful = (VectorWorld(Scripted(seed, ends, dtype, obs, in_columns, mode), 0, "Scripted") for _ in range(2))
    assert plain._rows is not None
    careful._rows = None
    rng = np.random.default_rng(seed)
    for _ in range(12):
        one, other = recv(plain), recv(careful)
        assert told(one) == told(other)
        actions = rng.integers(0, 3, len(one.lanes))
        send(plain, one.lanes, actions)
        send(careful, other.lanes, actions)
        assert plain._begun.tolist() == careful._begun.tolist()
    assert plain._envs[0].seen == careful._envs[0].seen  # type: ignore[attr-defined]


NONE = np.zeros(LANES, np.bool_)
ROWS = np.ones((LANES, 2), np.float32)
REWARDS = np.ones(LANES)


class Reading:
    """A reader with arrays of its own."""

    def __init__(self, lanes: int = LANES, row: tuple[int, ...] = (2,)) -> None:
        self.whole, self.reward = np.zeros((lanes, *row), np.float32), np.empty(lanes, np.float32)
        self.over, self.begun = np.zeros(lanes, np.bool_), np.zeros(lanes, np.int64)
        ids, rewards, flags = (np.empty(lanes, kind) for kind in (np.int64, np.float32, np.bool_))
        self.going = (ids, np.empty_like(self.whole), rewards, flags)
        self.ended = (*(np.empty_like(array) for array in self.going), np.empty_like(flags))
        self.reader = StepReader(self.whole, self.reward, self.going, self.ended, self.begun)

    def read(self, **changed: Any) -> int:
        step = {"observed": ROWS, "rewards": REWARDS, "terminated": NONE, "truncated": NONE, "first": NONE}
        return self.reader.read(**{**step, "over": self.over, "step": 7, **changed})


@pytest.mark.parametrize(
    "changed",
    [
        {"observed": ROWS.tolist()},
        {"observed": ROWS.astype(np.float64)},
        {"observed": ROWS[:3]},
        {"observed": np.ones((LANES, 2, 1), np.float32)},
        {"observed": np.where([[0, 1]] * LANES, np.nan, ROWS)},
        {"observed": np.where([[0, 1]] * LANES, np.float32(np.inf), ROWS)},
        {"observed": np.asfortranarray(np.where([[0, 1]] * LANES, np.float32(np.inf), ROWS))},
        {"rewards": REWARDS.tolist()},
        {"rewards": REWARDS.astype(np.int8)},
        {"rewards": REWARDS.astype(np.uint32)},
        {"rewards": REWARDS[:, None]},
        {"rewards": REWARDS[:3]},
        {"rewards": REWARDS * np.nan},
        {"rewards": REWARDS * 1e39},
        {"rewards": (REWARDS * np.inf).astype(np.float32)},
        {"terminated": NONE.astype(np.int8)},
        {"terminated": NONE[:3]},
        {"truncated": NONE.tolist()},
    ],
)
def test_what_is_not_plain_is_left_to_a_closer_look(changed: dict[str, Any]) -> None:
    assert Reading().read(**changed) == -1


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_whole_numbers_are_rewards_too(kind: type[np.generic]) -> None:
    reading = Reading()
    assert reading.read(rewards=np.array([-3, 0, 2**24 + 2, np.iinfo(np.int32).min], kind)) == 0
    assert reading.reward.tolist() == [-3, 0, 2**24 + 2, -(2**31)]


def test_the_step_of_a_reset_has_no_reward_and_no_end() -> None:
    reading = Reading()
    ends, first = np.array([True, True, False, False]), np.array([True, False, True, False])
    assert reading.read(rewards=REWARDS * 3, terminated=ends, first=first) == 1
    assert reading.reward.tolist() == [0, 3, 0, 3]
    assert reading.over.tolist() == [False, True, False, False]
    assert reading.begun.tolist() == [0, 7, 0, 0]
    assert [part[:3].tolist() for part in (reading.going[0], *reading.going[2:])] == [
        [0, 2, 3],
        [0, 0, 3],
        [True, True, False],
    ]
    assert [part[0] for part in (reading.ended[0], *reading.ended[2:])] == [1, 3, True, False]


def test_columns_become_rows_and_gaps_that_it_cannot_close_are_told() -> None:
    reading = Reading()
    columns = np.arange(LANES * 2, dtype=np.float32).reshape(2, LANES).T
    assert reading.read(observed=columns) == WAS_MOVED
    assert reading.whole.tolist() == columns.tolist()
    assert reading.read(observed=columns[::-1]) == WAS_MOVED
    assert reading.whole.tolist() == columns[::-1].tolist()
    assert reading.read() == 0
    deeper = Reading(row=(2, 3))
    assert deeper.read(observed=np.ones((LANES, 3, 2), np.float32).swapaxes(1, 2)) == HAS_GAPS


@pytest.mark.parametrize("width", range(1, 10))
@pytest.mark.parametrize("begin", [0, 1, 4])
def test_columns_of_any_number_and_place(width: int, begin: int) -> None:
    """`begin` moves them in memory by so many bytes: not every array lies where numbers of its size do."""
    reading = Reading(row=(width,))
    memory = np.zeros(begin + 4 * LANES * width, np.uint8)[begin:]
    columns = memory.view(np.float32).reshape(width, LANES).T
    columns[:] = np.arange(LANES * width).reshape(LANES, width)
    told = reading.read(observed=columns)
    assert told == (-1 if begin % 4 else 0 if width == 1 else WAS_MOVED)
    if told == WAS_MOVED:
        assert reading.whole.tolist() == columns.tolist()


def test_arrays_of_the_wrong_size_are_refused_not_written_beyond() -> None:
    right = Reading()
    others = [right.whole, right.reward, right.going, right.ended, right.begun]
    short = Reading(LANES - 1)
    wrong = [short.reward, short.going, short.ended, short.begun]
    for place, array in enumerate(wrong, start=1):
        given = [*others[:place], array, *others[place + 1 :]]
        with pytest.raises(ReplayError, match="a row for every lane"):
            StepReader(*given)  # type: ignore[arg-type]
    with pytest.raises(ReplayError, match="four arrays"):
        StepReader(right.whole, right.reward, right.ended, right.ended, right.begun)
    with pytest.raises(ReplayError, match="contiguous arrays"):
        StepReader(right.whole.T, right.reward, right.going, right.ended, right.begun)
    for name in ("first", "over"):
        with pytest.raises(ReplayError, match="a byte per lane"):
            right.read(**{name: NONE[:3]})
