"""Our side of `benchmarks pixels`, in a process of its own: a training by the public `freewheel.train`, as a user's script has it."""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import freewheel
from benchmarks.peers import pixels_settings as same
from freewheel.bench.account import BESIDE, LEAST_RUNNING, summary
from freewheel.bench.dqn_training import Watch, version
from freewheel.bench.worker.meter import LEAST_UPDATES, Meter

__all__ = ["train", "version"]

FRAMES = "benchmarks.peers.frames_env:make"
# What the learner does for images apart from its network: waiting for them, drawing, stacking, handing over.
IMAGE_PATH = ("wait_data", "sample", "transfer", "priorities")
LEARNER = "account/learner/"
DROPS = ("train/dropped_rows", "train/dropped_logs", "train/dropped_messages")


def train(meter: Meter, order: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="freewheel-bench-") as folder:
        run = freewheel.train(
            FRAMES if order["env"] == "frames" else same.GAME,
            algo="dqn",
            steps=same.ENDLESS,
            settings=settings_of(order, folder),
            preset="none",
            callbacks=[Watch(meter, "local")],
            is_quiet=True,
        )
        lines = list(csv.DictReader((run.folder / "metrics.csv").read_text().splitlines()))
        return {
            "account": summary(run.result.get("account")),
            "image_path": image_path(lines),
            "drops": dropped(lines),
        }


def settings_of(order: dict[str, Any], folder: str) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "runtime": "local",
        "world.lanes": order["envs"],
        "world.stack": same.STACK,
        "net.channels": list(same.CHANNELS),
        "net.kernels": list(same.KERNELS),
        "net.strides": list(same.STRIDES),
        "net.hidden": [same.HIDDEN],
        "q.double": False,
        "q.gamma": same.GAMMA,
        "explore.schedule": "constant",
        "explore.end": same.EPSILON,
        "replay.rows": same.BUFFER,
        "replay.warmup_rows": same.LEARNING_STARTS,
        "learner.batch_size": same.BATCH,
        "learner.ratio": same.BATCH / same.STEPS_PER_UPDATE,
        "learner.lr": same.LR,
        "learner.clip_norm": same.CLIP_NORM,
        "learner.target_every_updates": same.TARGET_EVERY_STEPS // same.STEPS_PER_UPDATE,
        "learner.compile": "off" if order["form"] == "eager" else "on",
        "learner.precision": "auto" if order["form"] == "mixed" else "fp32",
        "checkpoint.every_steps": 0,
        "eval_episodes": 0,
        "log.folder": folder,
    }
    if order["env"] == "pong":
        settings |= {
            "world.image_size": same.SIZE,
            "world.grey": True,
            "world.skip": 4,
            "world.noop_max": 30,
            "world.reward_clip": 1.0,
        }
    return settings


def image_path(lines: Sequence[Mapping[str, str]]) -> float | None:
    """Share of the learner's time, since training got under way, that goes to images and not to the network.

    Their conversion to floats is part of the update. The account of each line of the metrics is over the run so far.
    """
    lines = [line for line in lines if float(line.get("train/updates") or 0) >= LEAST_UPDATES]
    if len(lines) < 2:
        return None
    spent = {}
    for name in lines[-1]:
        if name.startswith(LEARNER):
            first, last = (float(line[name] or 0) * _lived(line) for line in (lines[0], lines[-1]))
            spent[name.removeprefix(LEARNER)] = last - first
    running = sum(seconds for name, seconds in spent.items() if name not in (*BESIDE, "useful", "closed"))
    return sum(spent.get(name, 0.0) for name in IMAGE_PATH) / max(running, LEAST_RUNNING)


def _lived(line: Mapping[str, str]) -> float:
    """How long the learner has lived, in starts of its own: that phase is over, so its share tells. Else the run's seconds."""
    start = float(line.get(f"{LEARNER}start") or 0)
    return 1 / start if start > 0 else float(line["train/seconds"])


def dropped(lines: Sequence[Mapping[str, str]]) -> int:
    """Rows, lines of the log and messages that were left out."""
    return int(sum(float(lines[-1].get(name) or 0) for name in DROPS)) if lines else 0
