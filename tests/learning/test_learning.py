"""Each algorithm learns something that chance does not give. The full table is `python -m benchmarks learn`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import freewheel


class Signal(gymnasium.Env[Any, Any]):
    """A sign says which of two actions pays at the third step; the other costs as much. Random play returns 0 on average."""

    observation_space = spaces.Box(-1, 1, (3,), np.float32)
    action_space = spaces.Discrete(2)
    is_hidden = False

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.sign, self.at = float(self.np_random.choice([-1.0, 1.0])), 0
        return self._see(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.at += 1
        reward = 0.0
        if self.at == 3:
            reward = 1.0 if (action == 1) == (self.sign > 0) else -1.0
        return self._see(), reward, self.at == 3, False, {}

    def _see(self) -> Any:
        shown = self.sign if self.at == 0 or not self.is_hidden else 0.0
        return np.array([shown, self.at / 3, 1.0], np.float32)


class Hidden(Signal):
    """The sign is shown at the first step only: the network needs three frames at once."""

    is_hidden = True


SETTINGS: dict[str, Any] = {
    "runtime": "sequential",
    "world.lanes": 4,
    "net.hidden": (32,),
    "q.gamma": 0.9,
    "replay.rows": 4_000,
    "replay.warmup_rows": 200,
    "learner.batch_size": 32,
    "learner.ratio": 8.0,
    "learner.updates_per_call": 4,
    "learner.lr": 3e-3,
    "learner.target_every_updates": 40,
    "eval_episodes": 50,
    "log.tensorboard": False,
    "log.csv": False,
}
EPSILON = {"explore.over_steps": 1_500}
DISTRIBUTION = {"q.v_min": -1.5, "q.v_max": 1.5, "q.num_atoms": 21}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "dqn": ("dqn", {"q.double": False, **EPSILON}),
    "dqn-all": ("dqn", {"q.dueling": True, "q.n_step": 2, "replay.prioritized": True, **EPSILON}),
    "dqn-noisy-soft": ("dqn", {"q.noisy": True, "learner.target_every_updates": 1, "learner.tau": 0.02}),
    "qrdqn": ("qrdqn", {"q.num_quantiles": 11, **EPSILON}),
    "iqn": ("iqn", {"q.num_taus": 8, "q.num_target_taus": 8, "q.num_act_taus": 8, "q.num_cosines": 16, **EPSILON}),
    "c51": ("c51", {**DISTRIBUTION, **EPSILON}),
    "rainbow": ("rainbow", DISTRIBUTION),
}


@pytest.mark.parametrize("case", CASES)
def test_it_learns_what_a_sign_means(case: str, tmp_path: Path) -> None:
    algo, more = CASES[case]
    settings = {**SETTINGS, **more, "log.folder": str(tmp_path)}
    run = freewheel.train(Signal, algo=algo, steps=3_000, seed=1, settings=settings, is_quiet=True)
    assert run.result["eval_return_mean"] > 0.9
    assert run.result["ratio"] == pytest.approx(8.0, rel=0.02)


def test_only_stacked_frames_tell_the_sign(tmp_path: Path) -> None:
    """The same run with one frame must fail: else this says nothing about stacking."""
    returns = {}
    for stack in (3, 1):
        settings = {**SETTINGS, **EPSILON, "world.stack": stack, "log.folder": str(tmp_path)}
        run = freewheel.train(Hidden, steps=4_000, seed=1, settings=settings, is_quiet=True)
        returns[stack] = run.result["eval_return_mean"]
    assert returns[3] > 0.9
    assert returns[1] < 0.6
