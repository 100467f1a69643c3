"""An env of your own: a corridor with the prize at one end.  Run: python examples/custom_env.py"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

import freewheel

LENGTH = 12


class Corridor(gymnasium.Env[Any, Any]):
    """Walk left or right; the prize is at the right end. Every step costs a little."""

    observation_space = spaces.Box(0.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)  # all randomness should come from self.np_random
        self.place, self.taken = int(self.np_random.integers(LENGTH - 1)), 0
        return self._see(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place = max(self.place + (1 if action else -1), 0)
        self.taken += 1
        is_there = self.place == LENGTH - 1
        # terminated: the task is over. truncated: the episode was cut off, and its value continues.
        return self._see(), 1.0 if is_there else -0.01, is_there, self.taken >= 100, {}

    def _see(self) -> Any:
        return np.array([self.place / LENGTH, 1.0], np.float32)


def main(steps: int = 8_000, folder: str = "runs") -> float:
    # Each lane gets an env of this class. On the command line, use examples.custom_env:Corridor.
    settings = {
        "log.folder": folder,
        "world.lanes": 4,
        "net.hidden": (32,),
        "learner.batch_size": 32,
        "learner.ratio": 8.0,
        "learner.lr": 2e-3,
        "learner.target_every_updates": 50,
        "explore.over_steps": 3_000,
        "replay.warmup_rows": 200,
    }
    run = freewheel.train(Corridor, steps=steps, settings=settings)
    print(f"evaluation: {run.result['eval_return_mean']:.2f} (the best is about 0.95)")
    return float(run.result["eval_return_mean"])


if __name__ == "__main__":
    main()
