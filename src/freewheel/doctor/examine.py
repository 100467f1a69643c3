"""Facts about an env: made and stepped as in `train`, in the process that `doctor/trial.py` starts for it.

Each stage is reported before it begins, so that the other side knows where an env hung or crashed.
"""

from __future__ import annotations

import os
import resource
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from freewheel.algos.make import make_algo
from freewheel.config import Config, find_algo
from freewheel.contracts import Spaces
from freewheel.doctor.env_facts import contract_fact, cost_facts, space_facts
from freewheel.doctor.facts import ENV, SOFTWARE, Fact
from freewheel.errors import ConfigError, EnvError, FreewheelError
from freewheel.imports import is_import
from freewheel.machine import update_form
from freewheel.machine.cores import num_cores
from freewheel.machine.device import pick_device
from freewheel.memory.lanes import forecast_bytes
from freewheel.memory.segment import allowed_bytes, format_bytes
from freewheel.nets.budget import IN_TRAINING
from freewheel.nets.inputs import has_images
from freewheel.run.layout import Layout, choose
from freewheel.spec import RowSpec
from freewheel.worlds.choose import choose_world, make_looking
from freewheel.worlds.find import find_import, find_spec
from freewheel.worlds.inline import InlineWorld
from freewheel.worlds.measure import Driver
from freewheel.worlds.pool import PoolWorld
from freewheel.worlds.vector import VectorWorld
from freewheel.worlds.world import Group, World, sole_group

# Libraries use these words when they find no display.
SCREEN_WORDS = ("display", "video device", "x11", "glfw", "egl", "opengl", "screen")

Tell = Callable[[dict[str, Any]], None]


def device_fact(asked: str) -> Fact:
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        names.append("Apple MPS")
    try:
        device = pick_device(asked)
    except ConfigError as error:
        return Fact(SOFTWARE, "devices", str(error), names, "problem")
    found = ", ".join(names) or "no CUDA or MPS device"
    return Fact(SOFTWARE, "devices", f"{found}; learner.device={asked} uses {device}", names)


def examine(config: Config, tell: Tell) -> None:
    """Tells stages and facts, and what `train` would fail on."""
    current = ""

    def stage(name: str) -> None:
        nonlocal current
        current = name
        tell({"stage": name})

    try:
        for fact in _facts(config, stage, tell):
            tell({"fact": vars(fact)})
    except (Exception, SystemExit) as error:
        tell({"fact": vars(_failure(config.env, current, error))})


def _facts(config: Config, stage: Callable[[str], None], tell: Tell) -> Iterator[Fact]:
    """In order, up to the first failure."""
    stage("finding it")
    tell({"quiet_bytes": _stderr_bytes()})
    try:
        if not is_import(config.world.kind):  # only the user's own world knows its env
            find_import(config.env) if is_import(config.env) else find_spec(config.env)
    except ConfigError as error:
        tell({"refused": str(error)})
        return
    layout = choose(config, num_cores())
    own = replace(config, world=replace(config.world, lanes=layout.lanes_per_actor[0]))
    stage("making it")
    began_s = time.monotonic()
    world, chosen = make_looking(config.env, own.world, 1, find_algo(config.algo).uses_mask)
    config, own = (replace(one, world=replace(one.world, info_mask=chosen.info_mask)) for one in (config, own))
    group = sole_group(world)
    yield _made(world, group.num_lanes, time.monotonic() - began_s)
    yield from space_facts(group)
    stage("building the network")
    spaces = Spaces(group.obs_space, group.action_space, config.world.lanes)
    algo = make_algo(config, spaces, copies=IN_TRAINING)
    count = sum(param.numel() for param in algo.net.parameters())
    yield Fact(ENV, "network", f"{count:,} weights for {config.algo}", count)
    yield _rows(group, config, layout, algo)
    stage("resetting it")
    driver = Driver(world, by_mask=algo.uses_mask)
    stage("stepping it")
    yield contract_fact(driver, partial(stage, "stepping it"))
    stage("choosing its world")
    settled, why_world = _settled(config, layout)
    layout = choose(settled, num_cores())
    yield _world(settled, why_world, world)
    yield from _update(algo, config, layout)
    yield from cost_facts(driver, own, algo.uses_mask, settled.world.kind == "pool", stage)
    stage("closing it")
    world.close()
    yield Fact(ENV, "close", "works", True)


def _made(world: World, num_lanes: int, seconds: float) -> Fact:
    value: dict[str, Any] = {"lanes": num_lanes, "seconds": seconds, "autoreset": None}
    if isinstance(world, VectorWorld):
        value["autoreset"] = world._mode.name
        form = f"a vector env with {num_lanes} lanes (autoreset mode {world._mode.name})"
    else:
        forms = {PoolWorld: "a pool", InlineWorld: "inline envs"}
        form = f"{forms.get(type(world), type(world).__name__)}, {num_lanes} lane{'s' * (num_lanes > 1)}"
    took = f"{seconds * 1e3:,.1f} ms" if seconds < 1 else f"{seconds:,.1f} s"
    return Fact(ENV, "making", f"{form}, in {took}", value)


def _settled(config: Config, layout: Layout) -> tuple[Config, str]:
    """The settings with the world that `train` would choose, and why, as in run/runtime.py."""
    if layout.runtime != "local" and config.world.kind != "pool":  # the sequential runtime does not measure auto
        return config, ""
    choice = choose_world(config.env, config.world, num_cores(), layout.actors)
    return replace(config, world=choice.chosen), choice.reason


def _world(settled: Config, reason: str, made: World) -> Fact:
    chosen = settled.world
    kind, shown = chosen.kind, reason  # a whole sentence where it was measured
    if kind == "auto":
        kind = "vector" if isinstance(made, VectorWorld) else "inline"
        reason = "it only makes vector envs." if kind == "vector" else "one process steps all lanes."
    value = {"kind": kind, "lanes": chosen.lanes, "workers": chosen.workers, "threads": chosen.threads}
    reason = reason or f"set by world.kind={kind}."
    return Fact(ENV, "world", shown or f"{kind}: {reason}", {**value, "reason": reason})


def _update(algo: Any, config: Config, layout: Layout) -> Iterator[Fact]:
    """The threads of an update of images, unless the settings say; other updates have one."""
    learner, cores, net = config.learner, num_cores(), algo.net
    if learner.threads or not has_images(net):
        return
    if layout.runtime == "sequential":
        form = update_form.settled_here(learner, net, cores)
    else:
        device = pick_device(learner.device).type
        cores = max(cores - layout.actors, 1) if algo.shares_cores else cores
        form = update_form.settled(learner, net, cores, device)
        if device == "cpu" and cores > 1 and algo.num_updates(config.steps) >= update_form.LEAST_UPDATES:
            shown = f"on 1 to {cores} threads: the run measures the fastest number at its start"
            yield Fact(ENV, "update", shown, {"threads": None})
            return
    yield Fact(ENV, "update", f"on {form.threads} thread{'s' * (form.threads > 1)}", {"threads": form.threads})


def _rows(group: Group, config: Config, layout: Layout, algo: Any) -> Fact:
    """The memory of the rows that the algorithm keeps."""
    spec, lanes = RowSpec.of(group.obs_space, group.action_space, algo.extra), config.world.lanes
    rows = algo.lane_rows(lanes, layout.runtime == "local") * lanes
    needed = forecast_bytes(spec, lanes, rows // lanes)
    allowed, source = allowed_bytes()
    shown = f"{rows:,} rows need {format_bytes(needed)} of the {format_bytes(allowed)} that {source} allows"
    value = {"rows": rows, "bytes": needed, "allowed_bytes": allowed}
    try:
        algo.refuse_memory(spec, lanes)
    except ConfigError as error:
        return Fact(ENV, algo.rows_are, str(error), value, "problem")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if limit != resource.RLIM_INFINITY and limit < needed:
        cure = "Shared memory counts as a file. Lift the limit: ulimit -f unlimited."
        shown = f"{rows:,} rows need {format_bytes(needed)}, and files are limited to {format_bytes(limit)}"
        return Fact(ENV, algo.rows_are, shown, value, "problem", cure)
    cure = f"Actors and learner need memory too: lower --{algo.rows_are}.rows."
    return Fact(ENV, algo.rows_are, shown, value).flagged(needed > allowed / 2, cure)


def _failure(env: str, stage: str, error: BaseException) -> Fact:
    """What `train` would end with."""
    shown = str(error)
    if not isinstance(error, FreewheelError):
        shown = f"{env} raised {type(error).__name__}: {error} while {stage}"
    cause = error.__cause__ if isinstance(error, EnvError) else None if isinstance(error, ConfigError) else error
    trace = "".join(traceback.format_exception(cause)) if cause is not None else ""
    cure = ""
    if any(word in f"{shown} {trace}".lower() for word in SCREEN_WORDS):
        cure = (
            "If it needs a display: leave render_mode out, set SDL_VIDEODRIVER=dummy or MUJOCO_GL=egl, or use xvfb-run."
        )
    return Fact(ENV, stage, shown, type(error).__name__, "problem", cure, trace)


def _stderr_bytes() -> int:
    sys.stderr.flush()
    return os.fstat(2).st_size
