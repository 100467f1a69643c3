"""A training of ours on CartPole, in a process of its own: by the public `freewheel.train`, as a user's script has it."""

from __future__ import annotations

import importlib.metadata
import tempfile
import time
from typing import Any

import freewheel
from freewheel.bench.account import summary
from freewheel.bench.worker import dqn_settings as same
from freewheel.bench.worker.meter import Meter

MODULE = __name__  # what `worker.train` imports


class Watch(freewheel.Callback):
    """Ends the training after its window; adds up what actor and learner take in the sequential runtime.

    The meter looks where steps and updates are of one moment: in the sequential runtime after a turn of the actor, in the local one when both
    counts were read.
    """

    def __init__(self, meter: Meter, runtime: str) -> None:
        self.meter, self.is_sequential = meter, runtime == "sequential"
        self.actor_s = self.learner_s = 0.0
        self._last_s: float | None = None

    def on_step(self, moment: freewheel.Moment) -> None:
        self.actor_s += self._since_last()
        if self.is_sequential:
            self._look(moment)

    def on_update(self, moment: freewheel.Moment) -> None:
        self.learner_s += self._since_last()
        if not self.is_sequential:
            self._look(moment)

    def learner_share(self) -> float:
        return self.learner_s / max(self.actor_s + self.learner_s, 1e-9)

    def _look(self, moment: freewheel.Moment) -> None:
        if self.meter.is_over(moment.step, moment.updates):
            moment.stop()

    def _since_last(self) -> float:
        """Seconds since the call before this one; those before the window are not kept."""
        now, last = time.perf_counter(), self._last_s
        self._last_s = now
        return now - last if last is not None and self.meter.is_open else 0.0


def version() -> str:
    return importlib.metadata.version("freewheel")


def train(meter: Meter, order: dict[str, Any]) -> dict[str, Any]:
    watch = Watch(meter, order["runtime"])
    with tempfile.TemporaryDirectory(prefix="freewheel-bench-") as folder:
        run = freewheel.train(
            same.ENV,
            algo=order["algo"],
            steps=same.ENDLESS,
            settings=settings_of(order, folder),
            preset="none",
            callbacks=[watch],
            is_quiet=True,
        )
    told: dict[str, Any] = {"account": summary(run.result.get("account"))}
    if order["runtime"] == "sequential":
        told["learner_share"] = watch.learner_share()
    return told


def order_of(
    *,
    lanes: int,
    runtime: str,
    is_compiled: bool,
    algo: str = "dqn",
    is_prioritized: bool = False,
    ratio: float = same.BATCH / same.STEPS_PER_UPDATE,
    actors: int = 0,
) -> dict[str, Any]:
    return {
        "envs": lanes,
        "threads": 1,
        "runtime": runtime,
        "is_compiled": is_compiled,
        "algo": algo,
        "is_prioritized": is_prioritized,
        "ratio": ratio,
        "actors": actors,
    }


def settings_of(order: dict[str, Any], folder: str) -> dict[str, Any]:
    # Compiled in fives, which divide the updates between two moves of the target.
    updates_per_call = 25 if order["is_compiled"] else 1
    settings = {
        "runtime": order["runtime"],
        "world.lanes": order["envs"],
        "net.hidden": list(same.HIDDEN),
        "q.double": False,
        "q.gamma": same.GAMMA,
        "explore.schedule": "constant",
        "explore.end": same.EPSILON,
        "replay.rows": same.BUFFER,
        "replay.warmup_rows": max(same.LEARNING_STARTS, updates_per_call * same.BATCH),
        "learner.batch_size": same.BATCH,
        "learner.ratio": order["ratio"],
        "learner.lr": same.LR,
        "learner.clip_norm": same.CLIP_NORM,
        "learner.target_every_updates": same.TARGET_EVERY_STEPS // same.STEPS_PER_UPDATE,
        "learner.compile": "on" if order["is_compiled"] else "off",
        "learner.updates_per_call": updates_per_call,
        "learner.threads": order["threads"],
        "checkpoint.every_steps": 0,
        "eval_episodes": 0,
        "log.folder": folder,
    }
    if order["is_prioritized"]:
        settings |= {"replay.prioritized": True, "q.n_step": same.PER_STEPS}
    if order["algo"] == "iqn":
        settings |= {
            "q.num_taus": same.TAUS,
            "q.num_target_taus": same.TARGET_TAUS,
            "q.num_act_taus": same.ACT_TAUS,
            "q.num_cosines": same.COSINES,
            "q.head": "linear",  # the plain loop's form
        }
    if order["actors"]:
        settings["local.actors"] = order["actors"]
    return settings
