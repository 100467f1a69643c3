"""The core's loop over envs against the careful reading that it stands for: the same rows, or it leaves them to that."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from sole import recv, send

from freewheel._core import put_row, step_lanes
from freewheel.errors import EnvError, ReplayError
from freewheel.worlds.inline import LOOK_CLOSELY, NONE_ENDED, InlineWorld
from freewheel.worlds.world import TERMINATED, TRUNCATED

HAS_ENDED = 1
ROW = np.arange(3, dtype=np.float32)
PLAIN = (ROW, 1.0, False, False, {})


def run(*results: Any, dtype: Any = np.float32) -> tuple[int, Any, Any, Any]:
    """What step_lanes says of envs that return these, and the rows, rewards and ends that it wrote."""
    count = len(results)
    obs, reward, ends = np.zeros((count, 3), dtype), np.zeros(count, np.float32), np.full(count, 9, np.uint8)
    seen: list[Any] = []
    logged: list[Any] = []
    steps = [lambda action, one=one: one for one in results]
    actions = list(range(count))
    found = step_lanes(steps, [logged.append] * count, actions, seen, obs, reward, ends)
    assert logged == actions
    assert all(mine is given for mine, given in zip(seen, results, strict=True))
    return found, obs, reward, ends


def test_plain_steps_land_in_their_rows() -> None:
    found, obs, reward, ends = run(PLAIN, (ROW + 3, -2.5, np.False_, np.False_, {"a": 1}), (ROW, -7, False, False, {}))
    assert found == NONE_ENDED
    assert obs.tolist() == [[0, 1, 2], [3, 4, 5], [0, 1, 2]]
    assert reward.tolist() == [1.0, -2.5, -7.0]
    assert ends.tolist() == [0, 0, 0]


def test_ends_are_told() -> None:
    ways = [(True, False), (False, np.True_), (np.True_, True), (False, False)]
    found, _, _, ends = run(*[(ROW, np.float64(1), *flags, {}) for flags in ways])
    assert found == HAS_ENDED
    assert ends.tolist() == [TERMINATED, TRUNCATED, TERMINATED + TRUNCATED, 0]


@pytest.mark.parametrize(
    "result",
    [
        None,
        (ROW, 1.0, False, False),
        [ROW, 1.0, False, False, {}],
        (ROW.tolist(), 1.0, False, False, {}),
        (memoryview(ROW), 1.0, False, False, {}),
        (ROW.astype(np.float64), 1.0, False, False, {}),
        (ROW.astype(np.int32), 1.0, False, False, {}),
        (ROW.astype(">f4"), 1.0, False, False, {}),
        (ROW[:2], 1.0, False, False, {}),
        (ROW[None], 1.0, False, False, {}),
        (np.arange(6, dtype=np.float32)[::2], 1.0, False, False, {}),  # has gaps, and is fine for the careful reading
        (np.array([0, np.nan, 0], np.float32), 1.0, False, False, {}),
        (np.array([0, -np.inf, 0], np.float32), 1.0, False, False, {}),
        (ROW, "1", False, False, {}),
        (ROW, True, False, False, {}),
        (ROW, 10**400, False, False, {}),
        (ROW, np.float32(1), False, False, {}),
        (ROW, float("nan"), False, False, {}),
        (ROW, 1e39, False, False, {}),
        (ROW, 1.0, 0, False, {}),
        (ROW, 1.0, False, "no", {}),
    ],
)
def test_what_is_not_plain_is_left_to_a_closer_look(result: Any) -> None:
    found, *_ = run(PLAIN, result, PLAIN)  # all are stepped all the same
    assert found == LOOK_CLOSELY


@pytest.mark.parametrize("dtype", ["float64", "uint8", "int64", "bool", "int16"])
def test_every_type_of_row(dtype: str) -> None:
    row = np.array([0, 1, 1], dtype)
    found, obs, *_ = run((row, 1.0, False, False, {}), dtype=dtype)
    assert (found, obs[0].tolist()) == (NONE_ENDED, row.tolist())


def test_a_row_of_half_floats_is_looked_at_closely() -> None:
    half = np.zeros(3, np.float16)
    assert run((half, 1.0, False, False, {}), dtype=np.float16)[0] == LOOK_CLOSELY


def test_an_env_that_raises_leaves_the_results_before_it() -> None:
    def fails(action: Any) -> Any:
        raise KeyError("mine")

    seen: list[Any] = []
    with pytest.raises(KeyError, match="mine"):
        step_lanes(
            [lambda _: PLAIN, fails, lambda _: PLAIN],
            [lambda _: None] * 3,
            [0, 1, 2],
            seen,
            np.zeros((3, 3), np.float32),
            np.zeros(3, np.float32),
            np.zeros(3, np.uint8),
        )
    assert len(seen) == 1


def test_places_that_do_not_fit_are_refused() -> None:
    obs, reward, ends = np.zeros((1, 3), np.float32), np.zeros(1, np.float32), np.zeros(1, np.uint8)
    one: tuple[list[Any], list[Any], list[Any]] = ([lambda _: PLAIN], [lambda _: None], [0])
    for wrong in [
        (obs[:, ::2], reward, ends),
        (obs[0], reward, ends),
        (np.zeros((2, 3), np.float32), reward, ends),
        (obs, reward.astype(np.float64), ends),
        (obs, reward, np.zeros(2, np.uint8)),
    ]:
        with pytest.raises(ReplayError, match="step_lanes"):
            step_lanes(*one, [], *wrong)
    with pytest.raises(ReplayError, match="an action per step"):
        step_lanes(one[0], one[1], [], [], obs, reward, ends)
    with pytest.raises(ReplayError, match="put_row"):
        put_row(ROW, obs, 1)


class Tape(gymnasium.Env[Any, Any]):
    """Returns what it is given, one after the other."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, results: list[Any]) -> None:
        self.results = iter(results)
        self.num_resets = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.num_resets += 1
        return np.full(2, self.num_resets, np.float32), {}

    def step(self, action: Any) -> Any:
        return next(self.results)


VALUES = st.floats(-1e6, 1e6, width=32)
STEPS = st.tuples(
    st.tuples(VALUES, VALUES).map(lambda pair: np.array(pair, np.float32)),
    st.one_of(VALUES, st.integers(-5, 5), VALUES.map(np.float32), st.booleans().map(np.bool_), st.just(float("nan"))),
    st.sampled_from([False, False, False, True, np.False_, np.True_, 0]),
    st.sampled_from([False, False, False, True, np.False_, 1, "x"]),
    st.just({}),
)


@settings(deadline=None)
@given(st.lists(st.lists(STEPS, min_size=3, max_size=3), min_size=1, max_size=6))
def test_a_world_gives_what_it_gives_without_the_core(rounds: list[list[Any]]) -> None:
    seen: list[list[Any]] = []
    for is_plain in (True, False):
        world = InlineWorld([Tape([one[lane] for one in rounds]) for lane in range(3)], 0, "tape")
        if not is_plain:
            world._plain = None
        rows: list[Any] = []
        try:
            for _ in rounds:
                ready = recv(world)
                parts = [ready.lanes, ready.reward, ready.first, ready.obs["obs"]]
                if (end := ready.ended) is not None:
                    parts += [end.lanes, end.reward, end.terminated, end.truncated, end.obs["obs"]]
                rows.append([part.tobytes() for part in parts])
                send(world, ready.lanes, np.zeros(len(ready.lanes), np.int64))
            recv(world)
        except EnvError as error:
            rows.append(str(error))
        seen.append(rows)
    assert seen[0] == seen[1]
