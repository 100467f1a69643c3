"""The core's reading of a vector env's step against the careful one that it stands for."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st

from freewheel._core import look_at_lanes, part_lanes
from freewheel.errors import ReplayError
from freewheel.worlds.vector import VectorWorld
from freewheel.worlds.world import Ready

LANES = 4


class Scripted(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Resets an ended lane in the step after; what happens is random, and the same for the same seed."""

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, seed: int, ends: float, dtype: Any, obs: Any, in_columns: bool) -> None:
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
        return self._look(), rewards, terminated, truncated, {}


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
    dtype=st.sampled_from([np.float64, np.float32, np.int64]),
    obs=st.sampled_from([np.float32, np.float64, np.uint8]),
    in_columns=st.booleans(),
)
def test_both_readings_give_the_same_rows_and_the_env_the_same_actions(
    seed: int, ends: float, dtype: Any, obs: Any, in_columns: bool
) -> None:
    plain, careful = (VectorWorld(Scripted(seed, ends, dtype, obs, in_columns), 0, "Scripted") for _ in range(2))
    assert plain._like is not None
    careful._like = None
    rng = np.random.default_rng(seed)
    for _ in range(12):
        one, other = plain.recv(), careful.recv()
        assert told(one) == told(other)
        actions = rng.integers(0, 3, len(one.lanes))
        plain.send(one.lanes, actions)
        careful.send(other.lanes, actions)
        assert plain._begun.tolist() == careful._begun.tolist()
    assert plain._envs[0].seen == careful._envs[0].seen  # type: ignore[attr-defined]


NONE = np.zeros(LANES, np.bool_)
ROWS = np.ones((LANES, 2), np.float32)
REWARDS = np.ones(LANES)


@pytest.mark.parametrize(
    "changed",
    [
        {"observed": ROWS.tolist()},
        {"observed": ROWS.astype(np.float64)},
        {"observed": ROWS[:3]},
        {"observed": np.ones((LANES, 2, 1), np.float32)},
        {"observed": np.ones((LANES, 4), np.float32)[:, ::2]},
        {"observed": np.where([[0, 1]] * LANES, np.nan, ROWS)},
        {"observed": np.where([[0, 1]] * LANES, np.float32(np.inf), ROWS)},
        {"rewards": REWARDS.tolist()},
        {"rewards": REWARDS.astype(np.int64)},
        {"rewards": REWARDS[:, None]},
        {"rewards": REWARDS[:3]},
        {"rewards": REWARDS * np.nan},
        {"rewards": REWARDS * 1e39},
        {"terminated": NONE.astype(np.int8)},
        {"terminated": NONE[:3]},
        {"truncated": NONE.tolist()},
    ],
)
def test_what_is_not_plain_is_left_to_a_closer_look(changed: dict[str, Any]) -> None:
    step = {"observed": ROWS, "rewards": REWARDS, "terminated": NONE, "truncated": NONE} | changed
    assert (
        look_at_lanes(**step, like=ROWS, first=NONE, reward_out=np.empty(LANES, np.float32), over_out=NONE.copy()) == -1
    )


def test_the_step_of_a_reset_has_no_reward_and_no_end() -> None:
    reward, over = np.empty(LANES, np.float32), NONE.copy()
    ends, first = np.array([True, True, False, False]), np.array([True, False, True, False])
    assert look_at_lanes(ROWS, REWARDS * 3, ends, NONE, ROWS, first, reward, over) == 1
    assert reward.tolist() == [0, 3, 0, 3]
    assert over.tolist() == [False, True, False, False]


def test_arrays_of_the_wrong_size_are_refused_not_written_beyond() -> None:
    over = np.array([True, False, False, False])
    reward = np.ones(LANES, np.float32)

    def part(going: int, ended: int) -> None:
        part_lanes(
            ROWS,
            reward,
            NONE,
            NONE,
            NONE,
            over,
            (
                np.empty(going, np.int64),
                np.empty((going, 2), np.float32),
                np.empty(going, np.float32),
                np.empty(going, bool),
            ),
            (np.empty(ended, np.int64), np.empty((ended, 2), np.float32), np.empty(ended, np.float32)),
        )

    part(3, 1)
    for going, ended in ((2, 1), (3, 0), (4, 1), (3, 2)):
        with pytest.raises(ReplayError, match="too small|too large"):
            part(going, ended)
    with pytest.raises(ReplayError, match="a float32 reward and a byte per lane"):
        look_at_lanes(ROWS, REWARDS, NONE, NONE, ROWS, NONE, np.empty(LANES), NONE.copy())
