"""Made the runs of `old_checkpoints/`: needs the package of commit f930fd5, the last one before policies had names.

scripts/builds.py builds it (`build_revision()` gives its interpreter); then: PYTHON make_old_checkpoints.py FOLDER
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np

import freewheel

COMMON: dict[str, Any] = {
    "runtime": "sequential",
    "world.lanes": 2,
    "net.hidden": (4,),
    "eval_episodes": 0,
    "log.tensorboard": False,
    "log.csv": False,
    "checkpoint.every_steps": 0,
}
REPLAY = {"replay.rows": 40, "replay.warmup_rows": 16, "learner.batch_size": 8, "learner.ratio": 4.0}
CASES: dict[str, dict[str, Any]] = {
    "dqn": {**COMMON, **REPLAY, "learner.updates_per_call": 1, "checkpoint.replay": True},
    "ppo": {**COMMON, "rollout.rows": 4, "ppo.minibatches": 2, "ppo.epochs": 2, "ppo.normalize_obs": True},
}
STEPS, STOP_AT, SEED = 90, 50, 8


def observations() -> Any:
    return np.random.default_rng(0).normal(scale=4, size=(40, 4)).astype(np.float32)


class Steer(freewheel.Callback):
    """Sets epsilon on the way, and may stop."""

    def __init__(self, has_epsilon: bool, stop_at: int = STEPS) -> None:
        self.has_epsilon, self.stop_at = has_epsilon, stop_at

    def on_step(self, moment: freewheel.Moment) -> None:
        if moment.step == 20 and self.has_epsilon:
            moment.set_epsilon(0.25)
        if moment.step >= self.stop_at:
            moment.stop()


def make(algo: str, folder: Path) -> dict[str, Any]:
    """A run that was stopped, in `folder`; the value says how it acts and how it would have gone on."""
    from freewheel.run.checkpoint import load_newest  # type: ignore[import-not-found]

    def train(name: str, steer: Steer) -> Any:
        settings = {**CASES[algo], "log.folder": str(folder / name)}
        given: dict[str, Any] = {"steps": STEPS, "seed": SEED, "preset": "none", "is_quiet": True}
        return freewheel.train("CartPole-v1", algo=algo, settings=settings, callbacks=[steer], **given)

    whole, part = train("whole", Steer(algo == "dqn")), train("part", Steer(algo == "dqn", STOP_AT))
    shutil.copytree(part.folder, folder / algo, ignore=shutil.ignore_patterns("lock", "status.json", "result.json"))
    tensors = load_newest(whole.folder / "checkpoints").tensors
    found = {
        "actions": freewheel.load(part.folder).act(observations()).tolist(),
        "returns": whole.returns[len(part.returns) :],
        "weights": {name: tensor.double().sum().item() for name, tensor in tensors.items() if name.startswith("net.")},
        "steps": part.result["steps"],
        "updates": whole.result["updates"],
    }
    for name in ("whole", "part"):
        shutil.rmtree(folder / name)
    return found


if __name__ == "__main__":
    made = {algo: make(algo, Path(sys.argv[1])) for algo in CASES}
    lines = ",\n".join(f' "{algo}": {json.dumps(found)}' for algo, found in made.items())
    (Path(sys.argv[1]) / "expected.json").write_text(f"{{\n{lines}\n}}\n")
