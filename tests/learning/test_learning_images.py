"""Pictures are learned from: a game is solved, and what only two frames in order can tell is learned with a stack, and not without."""

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


def test_a_ball_is_caught(tmp_path: Path) -> None:
    """5 steps of 84 x 84 pictures to a catch; who plays by chance gets -0.7."""
    game = {
        "world.stack": 2,
        "world.kwargs": '{"cells": 6}',
        "net.kernels": (14,),
        "net.strides": (14,),
        "q.gamma": 0.9,
    }
    explore = {"explore.schedule": "linear", "explore.over_steps": 2_000, "explore.end": 0.2}
    given = {**SETTINGS, **game, **explore, "q.n_step": 5, "eval_episodes": 50, "log.folder": str(tmp_path)}
    run = freewheel.train("freewheel/Catch-v0", steps=5_000, settings=given, is_quiet=True)
    assert run.result["eval_return_mean"] >= 0.8
