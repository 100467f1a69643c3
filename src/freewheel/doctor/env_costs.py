"""What one step of an env costs: time and CPU time, and whether it computes or waits."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from freewheel.spec import Space, flatten
from freewheel.worlds.legal import Legal
from freewheel.worlds.world import Columns, World, recv_sole, sole_group

NUM_ACTIONS = 512
MOST_STEPS = 200_000
# Below this share of CPU time a step mostly waits, unless other programs took its core.
WAITING_SHARE = 0.5


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


def _usage() -> Any:
    """Time, CPU time, and how often the process gave up its core or lost it."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return np.array([time.perf_counter(), time.process_time(), usage.ru_nvcsw, usage.ru_nivcsw])


def _costs(steps_us: list[float], resets_us: list[float], before: Any) -> Costs:
    """`before` is the usage at the first step."""
    wall_s, cpu_s, gave, lost = _usage() - before
    share = cpu_s / max(wall_s, 1e-9)
    return Costs(
        len(steps_us),
        float(np.median(steps_us)),
        float(np.mean(steps_us)),
        float(np.percentile(steps_us, 95)),
        float(np.median(resets_us)) if resets_us else None,
        float(share),
        bool(share < WAITING_SHARE and gave > lost),
    )


def costs_of_env(env: Any, budget_s: float, go_on: Callable[[], None], by_mask: bool = False) -> Costs:
    """Costs of a single env; with `by_mask` its mask limits the random actions."""
    actions = samples_of(env.action_space)
    clock = time.perf_counter_ns
    steps: list[float] = []
    resets: list[float] = []
    legal = legal_for(env.observation_space, env.action_space, by_mask)
    observed, _ = env.reset(seed=0)
    before = _usage()
    for i in paced(budget_s, go_on):
        action = actions[i % NUM_ACTIONS] if legal is None else legal.one(actions[i % NUM_ACTIONS], observed)
        began = clock()
        observed, _, terminated, truncated, _ = env.step(action)
        ended = clock()
        steps.append((ended - began) / 1e3)
        if terminated or truncated:
            observed, _ = env.reset(seed=len(resets) + 1)
            resets.append((clock() - ended) / 1e3)
    return _costs(steps, resets, before)


def costs_of_world(driver: Driver, budget_s: float, go_on: Callable[[], None]) -> Costs:
    """Costs of a vector env: the time of each call divided by its lanes, including our checks and the resets."""
    clock = time.perf_counter_ns
    steps: list[float] = []
    before = _usage()
    for _ in paced(budget_s, go_on):
        began = clock()
        driver.step()
        steps.append((clock() - began) / 1e3 / driver.group.num_lanes)
    return _costs(steps, [], before)


class Driver:
    """Steps a world with random actions; with `by_mask` the env's mask limits them."""

    def __init__(self, world: World, by_mask: bool = False) -> None:
        self.world = world
        self.steps = self.episodes = 0
        self.group = sole_group(world)
        self._actions = columns_of(self.group.action_space)
        self._legal = legal_for(self.group.obs_space, self.group.action_space, by_mask)
        self._ready = recv_sole(world)

    def step(self) -> None:
        lanes = self._ready.lanes
        rows = (self.steps + np.arange(len(lanes))) % NUM_ACTIONS
        actions = {name: column[rows] for name, column in self._actions.items()}
        if self._legal is not None:
            actions["action"] = self._legal.rows(actions["action"], self._ready.obs)
        self.world.send(0, lanes, actions)
        self._ready = recv_sole(self.world)
        self.steps += len(lanes)
        self.episodes += 0 if self._ready.ended is None else len(self._ready.ended.lanes)


def legal_for(obs_space: Space, action_space: Space, by_mask: bool) -> Legal | None:
    """None if the policy ignores masks, or the env has none."""
    legal = Legal(obs_space, action_space) if by_mask else None
    return legal if legal is not None and legal.has_mask else None


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


def samples_of(space: Space) -> list[Any]:
    """Random actions, the same in every call."""
    space.seed(1)
    return [space.sample() for _ in range(NUM_ACTIONS)]


def columns_of(space: Space) -> Columns:
    rows = [flatten("action", space, action) for action in samples_of(space)]
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}
