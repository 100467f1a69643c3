"""Our side of `benchmarks ppo`, in a process of its own: a training by the public `freewheel.train`, as a user's script has it."""

from __future__ import annotations

import importlib.metadata
import tempfile
from typing import Any

import freewheel
from benchmarks.peers import ppo_settings as same
from benchmarks.peers.slow_env import maker
from freewheel.bench.account import summary
from freewheel.bench.worker.meter import Meter


class Watch(freewheel.Callback):
    """Ends the training after its window. The meter looks where a rollout has just been learned from.

    With free-running roles the counts are read a moment later, at both ends of the window alike.
    """

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self._rollouts = 0

    def on_update(self, moment: freewheel.Moment) -> None:
        rollouts = moment.updates // same.UPDATES_PER_ROLLOUT
        if rollouts > self._rollouts:
            self._rollouts = rollouts
            if self.meter.is_over(moment.step, moment.updates):
                moment.stop()


def version() -> str:
    return importlib.metadata.version("freewheel")


def train(meter: Meter, order: dict[str, Any]) -> dict[str, Any]:
    is_slow = "slow" in order
    with tempfile.TemporaryDirectory(prefix="freewheel-bench-") as folder:
        run = freewheel.train(
            maker(order["slow"]) if is_slow else same.ENV,
            algo=order["algo"],
            steps=same.ENDLESS,
            settings=slow_settings(order, folder) if is_slow else settings_of(order, folder),
            preset="cyber" if is_slow else "none",
            callbacks=[Watch(meter)],
            is_quiet=True,
        )
    return {"account": summary(run.result.get("account"))}


def order_of(
    *, lanes: int, algo: str, runtime: str, is_compiled: bool, world: str = "auto", slow: str | None = None
) -> dict[str, Any]:
    order = {
        "envs": lanes,
        "threads": 1,
        "algo": algo,
        "runtime": runtime,
        "is_compiled": is_compiled,
        "world": world,
    }
    return order if slow is None else {**order, "slow": slow, "least_updates": same.UPDATES_PER_ROLLOUT}


def settings_of(order: dict[str, Any], folder: str) -> dict[str, Any]:
    return {
        **_common(order, folder),
        "net.hidden": list(same.HIDDEN),
        "net.activation": "tanh",
        "rollout.rows": same.ROLLOUT,
        "ppo.epochs": same.EPOCHS,
        "ppo.minibatches": same.MINIBATCHES,
        "ppo.gamma": same.GAMMA,
        "ppo.gae_lambda": same.GAE_LAMBDA,
        "ppo.clip": same.CLIP,
        "ppo.value_weight": same.VALUE_WEIGHT,
        "ppo.entropy_weight": same.ENTROPY_WEIGHT,
        "learner.lr": same.LR,
        "learner.clip_norm": same.CLIP_NORM,
        "learner.adam_eps": same.ADAM_EPS,
    }


def slow_settings(order: dict[str, Any], folder: str) -> dict[str, Any]:
    """What the preset for this work does not say."""
    return _common(order, folder)


def _common(order: dict[str, Any], folder: str) -> dict[str, Any]:
    return {
        "runtime": order["runtime"],
        "world.lanes": order["envs"],
        "world.kind": order["world"],
        "learner.compile": "on" if order["is_compiled"] else "off",
        "learner.threads": order["threads"],
        "checkpoint.every_steps": 0,
        "eval_episodes": 0,
        "log.folder": folder,
    }
