"""Our side of `bench dqn`, in a process of its own: a training by the public `freewheel.train`, as a user's script has it."""

from __future__ import annotations

import importlib.metadata
import tempfile
from typing import Any

import freewheel
from freewheel.bench.peers import dqn_settings as same
from freewheel.bench.peers.meter import Meter
from freewheel.learners.step import MOST_UNROLLED


class Watch(freewheel.Callback):
    def __init__(self, meter: Meter) -> None:
        self.meter = meter

    def on_step(self, moment: freewheel.Moment) -> None:
        if self.meter.is_over(moment.step, moment.updates):
            moment.stop()


def version() -> str:
    return importlib.metadata.version("freewheel")


def train(meter: Meter, order: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory(prefix="freewheel-bench-") as folder:
        freewheel.train(
            same.ENV,
            algo="dqn",
            steps=same.ENDLESS,
            settings=settings_of(order, folder),
            preset="none",
            callbacks=[Watch(meter)],
            is_quiet=True,
        )


def settings_of(order: dict[str, Any], folder: str) -> dict[str, Any]:
    updates_per_call = MOST_UNROLLED if order["is_compiled"] else 1
    return {
        "world.lanes": order["envs"],
        "net.hidden": list(same.HIDDEN),
        "q.double": False,
        "q.gamma": same.GAMMA,
        "explore.schedule": "constant",
        "explore.end": same.EPSILON,
        "replay.rows": same.BUFFER,
        "replay.warmup_rows": max(same.LEARNING_STARTS, updates_per_call * same.BATCH),
        "learner.batch_size": same.BATCH,
        "learner.ratio": same.BATCH / same.STEPS_PER_UPDATE,
        "learner.lr": same.LR,
        "learner.clip_norm": same.CLIP_NORM,
        "learner.target_every_updates": same.TARGET_EVERY_STEPS // same.STEPS_PER_UPDATE,
        "learner.compile": order["is_compiled"],
        "learner.updates_per_call": updates_per_call,
        "learner.threads": order["threads"],
        "checkpoint.every_steps": 0,
        "eval_episodes": 0,
        "log.folder": folder,
    }
