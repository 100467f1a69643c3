"""Our side of `benchmarks control`, in a process of its own: a training by the public `freewheel.train`, or its update alone."""

from __future__ import annotations

import importlib.metadata
import tempfile
from contextlib import ExitStack
from typing import Any

import freewheel
from benchmarks.peers import control_settings as same
from freewheel.bench import algo_update
from freewheel.bench.account import summary
from freewheel.bench.dqn_training import Watch
from freewheel.bench.worker.meter import Meter


def version() -> str:
    return importlib.metadata.version("freewheel")


def train(meter: Meter, order: dict[str, Any]) -> dict[str, Any]:
    """With `rows` only the compiled update is made, again and again: what the arithmetic alone allows."""
    if "rows" in order:
        train_bare(meter, order["env"], order["rows"])
        return {}
    with tempfile.TemporaryDirectory(prefix="freewheel-bench-") as folder:
        run = freewheel.train(
            order["env"],
            algo="sac",
            steps=same.ENDLESS,
            settings=settings_of(order, folder),
            preset="none",
            callbacks=[Watch(meter, order["runtime"])],
            is_quiet=True,
        )
    return {"account": summary(run.result.get("account"))}


def train_bare(meter: Meter, env: str, rows: int) -> None:
    """An update of a part of the batch counts as that part of one."""
    parts = same.BATCH // rows
    with ExitStack() as closing:
        call, together, _ = algo_update.open_update("sac", env, rows, True, closing)
        made = 0
        while not meter.is_over(made // parts, made // parts):
            call()
            made += together


def order_of(*, env: str, lanes: int, runtime: str, threads: int, is_compiled: bool) -> dict[str, Any]:
    return {"env": env, "envs": lanes, "threads": threads, "runtime": runtime, "is_compiled": is_compiled}


def settings_of(order: dict[str, Any], folder: str) -> dict[str, Any]:
    # The actor hands over a turn of all lanes at a time; as many updates are one call, and at most 8 one graph.
    updates_per_call = max(order["envs"], 1) if order["is_compiled"] else 1
    return {
        "runtime": order["runtime"],
        "world.lanes": order["envs"],
        "net.hidden": list(same.HIDDEN),
        "sac.gamma": same.GAMMA,
        "replay.rows": same.BUFFER,
        "replay.warmup_rows": same.LEARNING_STARTS,
        "learner.batch_size": same.BATCH,
        "learner.ratio": float(same.BATCH),
        "learner.lr": same.LR,
        "learner.tau": same.TAU,
        "learner.compile": "on" if order["is_compiled"] else "off",
        "learner.updates_per_call": updates_per_call,
        "learner.threads": order["threads"],
        "checkpoint.every_steps": 0,
        "eval_episodes": 0,
        "log.folder": folder,
    }
