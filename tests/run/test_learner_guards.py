"""What ends a training or warns of it: numbers that are not finite, observations that show nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import freewheel
from freewheel.store.checkpoint import load_newest

SETTINGS: dict[str, Any] = {
    "runtime": "sequential",
    "world.lanes": 2,
    "net.hidden": (8,),
    "replay.warmup_rows": 32,
    "learner.batch_size": 16,
    "eval_episodes": 0,
    "log.tensorboard": False,
}


def test_f09_ten_bad_updates_in_a_row_end_the_run_with_the_last_good_weights(tmp_path: Path) -> None:
    calls = 0

    def breaks(forward: Any, params: Any, target: Any, batch: Any, draws: Any) -> Any:
        nonlocal calls
        calls += 1
        q = forward(params, batch["obs"], None, None)
        factor = 1.0 if calls <= 5 or calls == 10 else float("nan")
        return (q.square().mean() * factor), freewheel.Outcome(batch["reward"].abs(), q.detach(), batch["reward"])

    with pytest.raises(freewheel.Diverged, match=r"10 updates in a row.*learner\.lr"):
        freewheel.train(
            "CartPole-v1",
            steps=2_000,
            preset="none",
            settings={**SETTINGS, "log.folder": str(tmp_path)},
            loss=breaks,
            is_quiet=True,
        )
    assert calls == 20  # four in a row were forgiven
    (folder,) = tmp_path.iterdir()
    tensors = load_newest(folder / "checkpoints").tensors
    assert all(bool(tensor.isfinite().all()) for tensor in tensors.values() if tensor.is_floating_point())
    assert tensors["optimizer.decay"][0] == pytest.approx(0.9**6)


class Blank(gymnasium.Env[Any, Any]):
    """Shows nothing."""

    observation_space = spaces.Box(-1, 1, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(3, np.float32), 1.0, False, False, {}


class Unrewarded(Blank):
    """Shows something else at each step; no step before the last of `until` is worth anything."""

    def __init__(self, until: int = 10**9) -> None:
        self.until, self.taken = until, 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.taken += 1
        obs = self.np_random.random(3, np.float32)
        return obs, float(self.taken == self.until), False, self.taken % 50 == 0, {}


def rewarded() -> Unrewarded:
    return Unrewarded(300)


SEES_NOTHING, GETS_NOTHING = "observations of the first rows are 0", "rewards of the first"


@pytest.mark.parametrize("algo", ["dqn", "ppo"])
@pytest.mark.parametrize(
    ("env", "told"), [(Blank, [SEES_NOTHING]), (Unrewarded, [GETS_NOTHING]), (rewarded, []), ("CartPole-v1", [])]
)
def test_r87_rows_that_teach_nothing_are_told(
    algo: str, env: Any, told: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {**SETTINGS, "log.folder": str(tmp_path), "log.every_s": 0.0}
    if algo == "ppo":
        mine = ("replay.", "learner.batch")
        settings = {name: value for name, value in settings.items() if not name.startswith(mine)}
        settings |= {"rollout.rows": 64}
    freewheel.train(env, algo=algo, steps=1200, preset="none", settings=settings, is_quiet=True)
    shown = capsys.readouterr().err
    assert [text for text in (SEES_NOTHING, GETS_NOTHING) if text in shown] == told
    assert shown.count("warning") == len(told), "told once"
