"""Facts about an env that hold for any run: its spaces, whether it repeats itself, and what one step costs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
from gymnasium import spaces

from freewheel.config import Config
from freewheel.doctor.facts import ENV, Fact
from freewheel.machine.cores import num_cores
from freewheel.run.layout import choose
from freewheel.spec import RowSpec, Space, flatten, leaves
from freewheel.worlds.inline import InlineWorld
from freewheel.worlds.legal import RandomActions
from freewheel.worlds.make import make_env
from freewheel.worlds.measure import Driver, since, usage
from freewheel.worlds.pool import PoolWorld
from freewheel.worlds.world import Group

# An examination steps an env for two seconds in all.
CONTRACT_S, COSTS_S = 0.7, 1.3
BY_NAME = "each process makes the env by its name"
REPEAT_STEPS = 100
# A float image takes four or eight times the memory of a uint8 image.
IMAGE_VALUES = 1_000
MOST_STEPS = 200_000


def space_facts(group: Group) -> Iterator[Fact]:
    fields = [field for field in RowSpec.of(group.obs_space, group.action_space).fields if field.is_observation]
    size = sum(field.num_bytes for field in fields)
    shown = f"{_outline(group.obs_space)}, {size:,} bytes"
    wasteful = [name for name, _, space in leaves(group.obs_space, "obs") if _is_float_image(space)]
    cure = f"{', '.join(wasteful)} holds pixels as floats: return uint8, which needs a quarter of the memory or less."
    yield Fact(ENV, "observations", shown, size).flagged(bool(wasteful), cure)
    yield Fact(ENV, "actions", _outline(group.action_space), str(group.action_space))


def _is_float_image(space: Space) -> bool:
    if not isinstance(space, spaces.Box) or np.dtype(space.dtype).kind != "f" or len(space.shape) < 2:
        return False
    return bool(int(np.prod(space.shape)) >= IMAGE_VALUES and space.low.min() >= 0 and space.high.max() == 255)


def _outline(space: Space) -> str:
    """A space without its bounds, which may be long."""
    if isinstance(space, spaces.Dict):
        return "Dict(" + ", ".join(f"{key}: {_outline(sub)}" for key, sub in space.spaces.items()) + ")"
    if isinstance(space, spaces.Tuple):
        return "Tuple(" + ", ".join(map(_outline, space.spaces)) + ")"
    return f"Box{space.shape} {space.dtype}" if isinstance(space, spaces.Box) else str(space)


def _pickling_fact(env: Any) -> Fact:
    """Not needed by the `train` command, which passes the name on; an env object passed to `train()` must be picklable."""
    try:
        ForkingPickler.dumps(env)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"[:120]
        note = "In Python, pass train() this name or a function that makes the env, not an env object."
        return Fact(ENV, "processes", f"{BY_NAME}; the env object cannot be pickled ({reason})", False, "ok", note)
    return Fact(ENV, "processes", f"{BY_NAME}; the env object can be pickled too", True)


def _repeats_fact(env: Any, by_mask: bool) -> Fact:
    """Whether the same seed and actions give the same episode: only then is a run reproducible."""
    if _episode(env, by_mask) == _episode(env, by_mask):
        return Fact(ENV, "seed", "the same seed and actions gave the same episode", True)
    cure = "Runs are not reproducible. Draw all random numbers from self.np_random, which reset(seed=...) seeds."
    return Fact(ENV, "seed", "the same seed and actions gave different episodes", False, "warning", cure)


def _episode(env: Any, by_mask: bool) -> list[bytes]:
    actions = RandomActions(env.observation_space, env.action_space, by_mask)
    observed, _ = env.reset(seed=1)
    seen = [_bytes(env, observed)]
    for i in range(REPEAT_STEPS):
        observed, reward, terminated, truncated, _ = env.step(actions.one(i, observed))
        seen.append(_bytes(env, observed) + repr(float(reward)).encode())
        if terminated or truncated:
            break
    return seen


def _bytes(env: Any, observed: Any) -> bytes:
    return b"".join(column.tobytes() for column in flatten("obs", env.observation_space, observed).values())


def contract_fact(driver: Driver, go_on: Callable[[], None]) -> Fact:
    """Steps all lanes with random actions; the world checks every row as in a run."""
    for _ in paced(CONTRACT_S, go_on):
        driver.step()
    shown = f"kept for {driver.steps:,} steps and {driver.episodes:,} episodes"
    return Fact(ENV, "contract", shown, {"steps": driver.steps, "episodes": driver.episodes})


def cost_facts(
    driver: Driver, config: Config, by_mask: bool, is_pool: bool, stage: Callable[[str], None]
) -> Iterator[Fact]:
    go_on = partial(stage, "timing it")
    go_on()
    if not isinstance(driver.world, (InlineWorld, PoolWorld)):
        yield from _step_facts(costs_of_world(driver, COSTS_S, go_on), config, is_pool)
        yield Fact(ENV, "processes", BY_NAME, True)
        return
    env = make_env(config.env, config.world)
    try:
        yield from _step_facts(costs_of_env(env, COSTS_S, go_on, by_mask), config, is_pool)
        if env.render_mode == "human":
            cure = "A window slows down every step. Leave render_mode out, and watch the agent with freewheel play."
            yield Fact(ENV, "rendering", "render_mode is human", "human", "warning", cure)
        stage("pickling it")
        yield _pickling_fact(env)
        stage("repeating an episode")
        yield _repeats_fact(env, by_mask)
    finally:
        env.close()


def _step_facts(costs: Costs, config: Config, is_pool: bool) -> Iterator[Fact]:
    shown = (
        f"{costs.median_us:,.1f} us median, {costs.mean_us:,.1f} mean, {costs.p95_us:,.1f} p95 over {costs.steps:,} "
        f"steps: {1e6 / max(costs.median_us, 1e-3):,.0f} per second on one core"
    )
    yield Fact(ENV, "step", shown, asdict(costs))
    if costs.reset_us is not None:
        yield Fact(ENV, "reset", f"{costs.reset_us:,.1f} us median", costs.reset_us)
    share = f"a step uses the CPU for {100 * costs.cpu_share:.0f} % of its time"
    if costs.waits:
        shown = f"waits: {share}" + "; the workers of the pool wait side by side" * is_pool
        cure = (
            f"More actors than cores may help: --runtime local --local.actors {2 * choose(config, num_cores()).actors}."
        )
        yield Fact(ENV, "work", shown, costs.cpu_share).flagged(not is_pool, cure)
    elif costs.cpu_share > 1.5:
        cure = "Its threads compete with the learner for cores: limit them where the env is made."
        yield Fact(ENV, "work", f"several threads: {share}", costs.cpu_share, "warning", cure)
    else:
        yield Fact(ENV, "work", f"computes: {share}", costs.cpu_share)


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
    clock, before, steps, resets = time.perf_counter, usage(), list[float](), list[float]()
    for i in paced(budget_s, go_on):
        action = actions.one(i, observed)
        began_s = clock()
        observed, _, terminated, truncated, _ = env.step(action)
        ended_s = clock()
        steps.append(ended_s - began_s)
        if terminated or truncated:
            observed, _ = env.reset(seed=len(resets) + 1)
            resets.append(clock() - ended_s)
    return _costs(before, steps, resets)


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
