"""Pictures are learned from in the right order: what only two frames in order can tell is learned with a stack, and not without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import freewheel

# Actions are all tried by chance: whoever follows a first guess sees too little of the other one. So learned five seeds of five.
SETTINGS: dict[str, Any] = {
    "runtime": "sequential",
    "net.channels": (16,),
    "net.kernels": (7,),
    "net.strides": (7,),
    "net.hidden": (64,),
    "q.gamma": 0.5,
    "explore.schedule": "constant",
    "explore.end": 1.0,
    "replay.rows": 5_000,
    "replay.warmup_rows": 500,
    "learner.batch_size": 64,
    "learner.ratio": 16.0,
    "learner.target_every_updates": 100,
    "learner.lr": 1e-3,
    "learner.compile": "off",
    "eval_episodes": 25,
    "log.tensorboard": False,
}


@pytest.mark.parametrize(("stack", "least", "most"), [(2, 14.0, 15.0), (1, -8.0, 8.0)])
def test_the_order_of_frames_is_learned_with_a_stack_only(
    tmp_path: Path, stack: int, least: float, most: float
) -> None:
    given = {**SETTINGS, "world.stack": stack, "log.folder": str(tmp_path)}
    run = freewheel.train("freewheel/Drift-v0", steps=2_500, settings=given, is_quiet=True)
    assert least <= run.result["eval_return_mean"] <= most
