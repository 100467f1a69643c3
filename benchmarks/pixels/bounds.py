"""What `benchmarks pixels` must keep to beside its speed, as cases: each against a bound, which is held from a ratio of 1 on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from benchmarks.peers import pixels_settings as same
from freewheel.bench.harness import OURS, Case, shown
from freewheel.bench.trainings import Configuration
from freewheel.memory.lanes import forecast_bytes
from freewheel.spec import RowSpec

BOUND = "bound"
PATH_PERCENT, CLOSED_PERCENT = 5.0, 98.0
# Rows, side of a picture, pictures stacked, gigabytes.
REPLAYS = ((50_000, same.MARIO_SIZE, same.MARIO_STACK, 0.9), (1_000_000, same.SIZE, same.STACK, 7.5))


def training_cases(own: Configuration, everybody: Sequence[Configuration], convert_s: float) -> list[Case]:
    """Of our best training the image path and the account; drops of every one of ours."""
    converted = convert_s * own.updates_per_step()  # seconds per step
    paths = [
        100 * (window["image_path"] + converted * window["steps_per_s"])
        for window in own.windows
        if window.get("image_path") is not None
    ]
    closed = [100 * window["account"]["closed"] for window in own.windows if "closed" in (window.get("account") or {})]
    ours = [window for each in everybody if each.side == OURS for window in each.windows]
    drops = float(sum(window.get("drops", 0) for window in ours))
    found = []
    if paths:
        said = "of the learner's time goes to images apart from the network: collect, write, sample, stack, convert"
        found.append(bounded(f"pixels/path/{same.BATCH}", "%", paths, PATH_PERCENT, said))
        found[-1].extra["convert_ms"] = shown(1e3 * convert_s)
    said = f"rows, messages and lines of the log were left out, in all {len(ours)} windows of ours together"
    found.append(bounded(f"pixels/drops/{same.BATCH}", "drops", [drops], 0.0, said))
    if closed:
        said = "of the time has a name, in the window and role where least has"
        found.append(bounded(f"pixels/account/{same.BATCH}", "% closed", [min(closed)], CLOSED_PERCENT, said))
    return found


def replay_cases() -> list[Case]:
    """Shared memory of a replay, as a run forecasts it and then takes it."""
    return [
        bounded(f"pixels/replay/{rows}x{stack}x{size}x{size}", "GB", [replay_gb(rows, size)], most, "are taken")
        for rows, size, stack, most in REPLAYS
    ]


def replay_gb(rows: int, size: int, lanes: int = 8) -> float:
    """Of grey frames, each kept once, whatever number of them is stacked."""
    spec = RowSpec.of(spaces.Box(0, 255, (size, size), np.uint8), spaces.Discrete(same.ACTIONS))
    return forecast_bytes(spec, lanes, rows // lanes) / 1e9


def bounded(name: str, unit: str, ours: list[float], bound: float, said: str) -> Case:
    case = Case(name, unit, ours, baselines={BOUND: [bound]}, baseline=BOUND, goal=1.0)
    worst: Any = min(ours) if unit.endswith("closed") else max(ours)
    side = "at least" if unit.endswith("closed") else "at most"
    case.extra = {"notes": [f"{name}: {worst:.4g} {unit} {said}; {side} {bound:g} is the goal."]}
    return case
