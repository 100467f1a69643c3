"""What one step of an env costs: time and CPU time, and whether it computes or waits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from freewheel.worlds.legal import RandomActions
from freewheel.worlds.measure import Driver, since, timed_steps, usage

MOST_STEPS = 200_000


@dataclass(frozen=True)
class Costs:
    """Costs of one step of one lane, with random actions; `reset_us` is None where resets are part of steps."""

    steps: int
    median_us: float
    mean_us: float
    p95_us: float
    reset_us: float | None
    cpu_share: float
    waits: bool


def costs_of_env(env: Any, budget_s: float, go_on: Callable[[], None], by_mask: bool = False) -> Costs:
    """Costs of a single env; with `by_mask` its mask limits the random actions."""
    actions = RandomActions(env.observation_space, env.action_space, by_mask)
    observed, _ = env.reset(seed=0)
    before = usage()
    took = [took_s for _, took_s in zip(paced(budget_s, go_on), timed_steps(env, actions, observed), strict=False)]
    steps, resets = zip(*took, strict=True)
    return _costs(before, steps, [reset_s for reset_s in resets if reset_s])


def costs_of_world(driver: Driver, budget_s: float, go_on: Callable[[], None]) -> Costs:
    """Costs of a vector env: the time of each call divided by its lanes, including our checks and the resets."""
    clock = time.perf_counter
    before, steps = usage(), list[float]()
    for _ in paced(budget_s, go_on):
        began_s = clock()
        driver.step()
        steps.append((clock() - began_s) / driver.group.num_lanes)
    return _costs(before, steps, [])


def _costs(before: Any, steps_s: Sequence[float], resets_s: Sequence[float]) -> Costs:
    """`before` is the usage at the first step."""
    wall_s, cpu_s, waits = since(before, len(steps_s))
    steps_us, resets_us = 1e6 * np.array(steps_s), 1e6 * np.array(resets_s)
    return Costs(
        len(steps_us),
        float(np.median(steps_us)),
        float(np.mean(steps_us)),
        float(np.percentile(steps_us, 95)),
        float(np.median(resets_us)) if len(resets_us) else None,
        cpu_s / max(wall_s, 1e-9),
        waits,
    )


def paced(budget_s: float, go_on: Callable[[], None]) -> Iterator[int]:
    """Counts until `budget_s` is over, at least one step; calls `go_on` about once a second, as a sign of life."""
    last_s = time.monotonic()
    end_s = last_s + budget_s
    for i in range(MOST_STEPS):
        yield i
        now_s = time.monotonic()
        if now_s >= end_s:
            return
        if now_s > last_s + 1:
            go_on()
            last_s = now_s
