"""PPO learns what chance does not give. The full table is `python -m benchmarks learn`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import freewheel


def train(folder: Path, env: Any, steps: int, preset: str = "none", **settings: Any) -> freewheel.Run:
    given = {"log.tensorboard": False, "log.csv": False, "log.folder": str(folder), **settings}
    return freewheel.train(env, algo="ppo", steps=steps, seed=1, settings=given, preset=preset, is_quiet=True)


def test_it_balances_a_pole(tmp_path: Path) -> None:
    run = train(tmp_path, "CartPole-v1", 40_000, "auto", eval_episodes=20)
    assert run.result["eval_return_mean"] >= 195


class Aim(gymnasium.Env[Any, Any]):
    """What is seen says what to do: a place for each choice, or a number to hit. Cut after 8 steps, which changes nothing."""

    def __init__(self, action_space: Any) -> None:
        self.action_space = action_space
        self.width = len(action_space.nvec) if isinstance(action_space, spaces.MultiDiscrete) else action_space.shape[0]
        self.observation_space = spaces.Box(-1, 1, (self.width,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.at = 0
        return self._see(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.at += 1
        if isinstance(self.action_space, spaces.Box):
            reward = -float(np.abs(np.asarray(action) - 0.8 * self.goal).mean())
        else:
            reward = float((np.asarray(action) == (self.goal > 0)).mean())
        return self._see(), reward, False, self.at == 8, {}

    def _see(self) -> Any:
        self.goal = self.np_random.uniform(-1, 1, self.width).astype(np.float32)
        return self.goal


@pytest.mark.parametrize(
    ("space", "least"),
    [(spaces.MultiDiscrete([2, 2, 2]), 7.4), (spaces.Box(-1, 1, (2,), np.float32), -1.2)],
    ids=["multi", "box"],
)
def test_it_learns_several_choices_and_numbers(tmp_path: Path, space: Any, least: float) -> None:
    settings = {"world.lanes": 8, "rollout.rows": 32, "ppo.gamma": 0.5, "ppo.epochs": 8, "learner.lr": 3e-3}
    settings |= {"ppo.entropy_weight": 0.0, "eval_episodes": 30}
    if isinstance(space, spaces.Box):
        settings["ppo.log_std"] = -0.5
    run = train(tmp_path, lambda: Aim(space), 15_000, **settings)
    assert run.result["eval_return_mean"] > least
