"""Random actions that a mask allows."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from freewheel.config import WorldConfig
from freewheel.worlds.choose import choose_world
from freewheel.worlds.legal import RandomActions


def see(size: int) -> spaces.Dict:
    return spaces.Dict({"see": spaces.Box(-1, 1, (2,), np.float32), "action_mask": spaces.MultiBinary(size)})


@pytest.mark.parametrize(
    ("space", "counts", "starts"),
    [
        (spaces.Discrete(7, start=-2), [7], [-2]),
        (spaces.MultiDiscrete([3, 5], start=[1, 0]), [3, 5], [1, 0]),
        (spaces.MultiDiscrete([[2, 3], [4, 2]]), [2, 3, 4, 2], [0, 0, 0, 0]),
        (spaces.MultiBinary(3), [2, 2, 2], [0, 0, 0]),
    ],
    ids=["discrete", "multi", "table", "binary"],
)
def test_what_is_forbidden_moves_and_what_is_allowed_stays(space: Any, counts: list[int], starts: list[int]) -> None:
    legal, chance = RandomActions(see(sum(counts)), space), np.random.default_rng(1)
    assert legal.has_mask
    space.seed(1)
    actions = np.stack([np.asarray(space.sample()) for _ in range(200)])
    parts = [chance.random((200, count)) < 0.4 for count in counts]
    for part in parts:
        part[np.arange(200), chance.integers(part.shape[1], size=200)] = True
    mask = np.concatenate(parts, 1).astype(np.int8)
    moved = legal.rows(0, 200, {"obs.action_mask": mask})["action"]
    assert moved.dtype == actions.dtype
    before, after = (rows.reshape(200, -1) - starts for rows in (actions, moved))
    for i, part in enumerate(parts):
        assert part[np.arange(200), after[:, i]].all()
        stays = part[np.arange(200), before[:, i]]
        np.testing.assert_array_equal(after[stays, i], before[stays, i])
        assert 0 < stays.sum() < 200
    for row in range(5):
        one = legal.one(row, {"action_mask": mask[row]})
        assert space.contains(one)
        np.testing.assert_array_equal(one, moved[row])


def test_without_a_mask_and_without_an_allowed_action_nothing_moves() -> None:
    plain, full = RandomActions(spaces.Box(-1, 1, (2,)), spaces.Discrete(2)), RandomActions(see(3), spaces.Discrete(3))
    assert not plain.has_mask
    assert not RandomActions(see(3), spaces.Box(-1, 1, (3,))).has_mask
    assert not RandomActions(see(3), spaces.Discrete(2)).has_mask
    for i, action in enumerate(plain._samples[:5]):
        assert plain.one(i, np.zeros(2)) == action
    for i, action in enumerate(full._samples[:5]):
        assert full.one(i, {"action_mask": np.zeros(3)}) == action


class Strict(gymnasium.Env[Any, Any]):
    """Refuses what its mask forbids, and knows what its step costs."""

    observation_space = see(50)
    action_space = spaces.Discrete(50)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.see(), {}

    def see(self) -> Any:
        self.allowed = int(self.np_random.integers(50))
        mask = np.zeros(50, np.int8)
        mask[self.allowed] = 1
        return {"see": np.zeros(2, np.float32), "action_mask": mask}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if action != self.allowed:
            raise ValueError(f"action {action} is forbidden")
        return self.see(), 1.0, bool(self.np_random.random() < 0.1), False, {}


def test_an_env_that_refuses_forbidden_actions_is_measured() -> None:
    reason = choose_world(Strict, WorldConfig(lanes=8), 2).reason
    assert "a step takes" in reason
