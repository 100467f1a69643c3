"""Facts about an env: made and stepped as `train` would, in the process that `doctor/trial.py` starts for it.

Stages are told before they begin, so that whoever waits knows where an env that hangs or crashes was.
"""

from __future__ import annotations

import faulthandler
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from freewheel.config import Config, find_algo, from_dict
from freewheel.contracts import Spaces
from freewheel.doctor.env_costs import Costs, Driver, costs_of_env, costs_of_world, paced
from freewheel.doctor.env_facts import BY_NAME, ENV, pickling_fact, repeats_fact, space_facts
from freewheel.doctor.facts import Fact
from freewheel.doctor.machine_facts import SOFTWARE
from freewheel.doctor.trial import LOAD_TIMEOUT_S
from freewheel.errors import ConfigError, EnvError, FreewheelError
from freewheel.imports import is_import
from freewheel.machine.cores import num_cores
from freewheel.machine.threads import limit_threads
from freewheel.memory.lanes import forecast_bytes
from freewheel.memory.segment import allowed_bytes, format_bytes
from freewheel.run.layout import Layout, choose
from freewheel.spec import RowSpec
from freewheel.worlds.find import find_import, find_spec
from freewheel.worlds.inline import InlineWorld
from freewheel.worlds.make import choose_world, make_env, make_world
from freewheel.worlds.pool import PoolWorld
from freewheel.worlds.vector import VectorWorld
from freewheel.worlds.world import Group, World, sole_group

# Together the two seconds that an examination may step an env for.
CONTRACT_S, COSTS_S = 0.7, 1.3
# After the deadline of the process that reads us: only for the case that it is gone.
ORPHAN_S = 20

# What libraries say when they find no screen.
SCREEN_WORDS = ("display", "video device", "x11", "glfw", "egl", "opengl", "screen")

Tell = Callable[[dict[str, Any]], None]
Stage = Callable[[str], None]


def main(fd: str, timeout_s: str, config: str) -> None:
    """The child's whole life; messages are lines of JSON into `fd`."""
    faulthandler.enable()  # a crash leaves its stack on stderr
    faulthandler.dump_traceback_later(LOAD_TIMEOUT_S)
    with open(int(fd), "w", buffering=1) as pipe:

        def tell(message: dict[str, Any]) -> None:
            if "stage" in message:
                # Both work even while C code holds the interpreter: the stack goes to stderr, and an orphan ends.
                faulthandler.dump_traceback_later(float(timeout_s))
                signal.alarm(int(float(timeout_s)) + ORPHAN_S)
            pipe.write(json.dumps(message) + "\n")

        settings = from_dict(json.loads(config))
        limit_threads(settings.learner.threads or 1)  # before torch is imported
        tell({"fact": _devices(settings.learner.device).record()})
        if settings.env:
            _examine(settings, tell)
        tell({"done": True})
        sys.stdout.flush()
        os._exit(0)  # nothing that the env left running may hold the process


def _devices(asked: str) -> Fact:
    import torch

    from freewheel.machine.device import pick_device

    names = (
        [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    )
    if torch.backends.mps.is_available():
        names.append("Apple MPS")
    try:
        device = pick_device(asked)
    except ConfigError as error:
        return Fact(SOFTWARE, "devices", str(error), names, "problem")
    found = ", ".join(names) or "no CUDA or MPS device"
    return Fact(SOFTWARE, "devices", f"{found}; learner.device={asked} takes {device}", names)


def _examine(config: Config, tell: Tell) -> None:
    current = ""

    def stage(name: str) -> None:
        nonlocal current
        current = name
        tell({"stage": name})

    try:
        for fact in _facts(config, stage, tell):
            tell({"fact": fact.record()})
    except (Exception, SystemExit) as error:
        tell({"fact": _failure(config.env, current, error).record()})


def _facts(config: Config, stage: Stage, tell: Tell) -> Iterator[Fact]:
    """In order; the first that cannot be found out ends it."""
    stage("finding it")
    tell({"quiet_bytes": _stderr_bytes()})
    try:
        if not is_import(config.world.kind):  # a world from outside alone knows what its env is
            find_import(config.env) if is_import(config.env) else find_spec(config.env)
    except ConfigError as error:
        tell({"refused": str(error)})
        return
    layout = choose(config, num_cores())
    own = replace(config, world=replace(config.world, lanes=layout.lanes_per_actor[0]))
    stage("making it")
    began_s = time.monotonic()
    world = make_world(config.env, own.world, seed=1)
    group = sole_group(world)
    yield _made(world, group.num_lanes, time.monotonic() - began_s)
    yield from space_facts(group)
    stage("fitting a net")
    algo = _algo(group, config)
    count = sum(param.numel() for param in algo.net.parameters())
    yield Fact(ENV, "network", f"{count:,} weights for {config.algo}", count)
    yield _rows(group, config, layout, algo)
    stage("resetting it")
    driver = Driver(world, by_mask=algo.uses_mask)
    stage("stepping it")
    yield _contract(driver, lambda: stage("stepping it"))
    stage("choosing its world")
    settled, why_world = _settled(config, layout)
    layout = choose(settled, num_cores())
    yield _world(settled, why_world, world)
    yield from _update(algo, config, layout)
    yield from _costs(driver, own, settled.world.kind == "pool", stage)
    stage("closing it")
    world.close()
    yield Fact(ENV, "close", "works", True)


def _made(world: World, num_lanes: int, seconds: float) -> Fact:
    value: dict[str, Any] = {"lanes": num_lanes, "seconds": seconds, "autoreset": None}
    if isinstance(world, VectorWorld):
        value["autoreset"] = world._mode.name
        form = f"one vector env of {num_lanes} lanes (autoreset mode {world._mode.name})"
    else:
        forms = {PoolWorld: "a pool", InlineWorld: "an env each"}
        form = f"{forms.get(type(world), type(world).__name__)} for {num_lanes} lanes"
    return Fact(ENV, "making", f"{form} in {_seconds(seconds)}", value)


def _settled(config: Config, layout: Layout) -> tuple[Config, str]:
    """The settings with the world that `train` would take, and why: run/runtime.py settles it so."""
    if layout.runtime != "local" and config.world.kind != "pool":  # in turn auto is not measured
        return config, ""
    choice = choose_world(config.env, config.world, num_cores(), layout.actors)
    return replace(config, world=choice.chosen), choice.reason


def _world(settled: Config, reason: str, made: World) -> Fact:
    chosen = settled.world
    kind, shown = chosen.kind, reason  # a whole sentence where it was measured
    if kind == "auto":
        kind = "vector" if isinstance(made, VectorWorld) else "inline"
        reason = "it makes vector envs alone." if kind == "vector" else "one process steps all lanes in turn."
    value = {"kind": kind, "lanes": chosen.lanes, "workers": chosen.workers, "threads": chosen.threads}
    reason = reason or f"world.kind={kind} was asked for."
    return Fact(ENV, "world", shown or f"{kind}: {reason}", {**value, "reason": reason})


def _update(algo: Any, config: Config, layout: Layout) -> Iterator[Fact]:
    """The threads of an update of images, where nobody set them; other updates have one."""
    from freewheel.machine import update_form as forms
    from freewheel.machine.device import pick_device
    from freewheel.nets.inputs import has_images

    learner, cores, net = config.learner, num_cores(), algo.net
    if learner.threads or not has_images(net):
        return
    if layout.runtime == "sequential":
        form = forms.settled_here(learner, net, cores)
    else:
        device = pick_device(learner.device).type
        cores = max(cores - layout.actors, 1) if algo.shares_cores else cores
        form = forms.settled(learner, net, cores, device)
        if device == "cpu" and cores > 1 and algo.num_updates(config.steps) >= forms.LEAST_UPDATES:
            shown = f"on 1 to {cores} threads, whichever a trial at the start finds fastest"
            yield Fact(ENV, "update", shown, {"threads": None})
            return
    yield Fact(ENV, "update", f"on {form.threads} thread{'s' * (form.threads > 1)}", {"threads": form.threads})


def _algo(group: Group, config: Config) -> Any:
    """The algorithm with its network, as the run has it."""
    from freewheel.algos.make import make_algo

    return make_algo(config, Spaces(group.obs_space, group.action_space, config.world.lanes))


def _rows(group: Group, config: Config, layout: Layout, algo: Any) -> Fact:
    """The memory of the rows that the algorithm keeps."""
    spec, lanes = RowSpec.of(group.obs_space, group.action_space, algo.extra), config.world.lanes
    rows = algo.lane_rows(lanes, layout.runtime == "local") * lanes
    needed = forecast_bytes(spec, lanes, rows // lanes)
    allowed, source = allowed_bytes()
    shown = f"{rows:,} rows take {format_bytes(needed)} of {format_bytes(allowed)} that {source} allows"
    value = {"rows": rows, "bytes": needed, "allowed_bytes": allowed}
    try:
        algo.refuse_memory(spec, lanes)
    except ConfigError as error:
        return Fact(ENV, algo.rows_are, str(error), value, "problem")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if limit != resource.RLIM_INFINITY and limit < needed:
        cure = "Shared memory counts as a file. Lift the limit: ulimit -f unlimited."
        shown = f"{rows:,} rows take {format_bytes(needed)}, and files are limited to {format_bytes(limit)}"
        return Fact(ENV, algo.rows_are, shown, value, "problem", cure)
    if needed <= allowed / 2:
        return Fact(ENV, algo.rows_are, shown, value)
    cure = f"The roles need memory too: fewer --{algo.rows_are}.rows leave them more."
    return Fact(ENV, algo.rows_are, shown, value, "warning", cure)


def _contract(driver: Driver, go_on: Callable[[], None]) -> Fact:
    """Steps all lanes with random actions; the world checks every row as in a run."""
    for _ in paced(CONTRACT_S, go_on):
        driver.step()
    shown = f"kept over {driver.steps:,} steps and {driver.episodes:,} ends of episodes"
    return Fact(ENV, "contract", shown, {"steps": driver.steps, "episodes": driver.episodes})


def _costs(driver: Driver, config: Config, is_pool: bool, stage: Stage) -> Iterator[Fact]:
    def go_on() -> None:
        stage("timing it")

    go_on()
    if not isinstance(driver.world, (InlineWorld, PoolWorld)):
        yield from _cost_facts(costs_of_world(driver, COSTS_S, go_on), config, is_pool)
        yield Fact(ENV, "processes", BY_NAME, True)
        return
    env = make_env(config.env, config.world)
    try:
        yield from _cost_facts(
            costs_of_env(env, COSTS_S, go_on, by_mask=find_algo(config.algo).uses_mask), config, is_pool
        )
        if env.render_mode == "human":
            cure = "A window slows every step: leave render_mode out, and see the agent with freewheel play."
            yield Fact(ENV, "rendering", "render_mode is human", "human", "warning", cure)
        stage("pickling it")
        yield pickling_fact(env)
        stage("repeating it")
        yield repeats_fact(env, find_algo(config.algo).uses_mask)
    finally:
        env.close()


def _cost_facts(costs: Costs, config: Config, is_pool: bool) -> Iterator[Fact]:
    shown = (
        f"{costs.median_us:,.1f} us median, {costs.mean_us:,.1f} mean, {costs.p95_us:,.1f} p95 over {costs.steps:,} "
        f"steps: {1e6 / max(costs.median_us, 1e-3):,.0f} a second on one core"
    )
    yield Fact(ENV, "step", shown, costs.record())
    if costs.reset_us is not None:
        yield Fact(ENV, "reset", f"{costs.reset_us:,.1f} us median", costs.reset_us)
    share = f"{costs.cpu_share:.0%} of the time of a step is CPU time"
    if costs.waits and is_pool:
        yield Fact(ENV, "work", f"waits: {share}; the workers of its pool wait side by side", costs.cpu_share)
    elif costs.waits:
        layout = choose(config, num_cores())
        cure = f"More actors than cores may pay: try --runtime local --local.actors {2 * layout.actors}."
        yield Fact(ENV, "work", f"waits: {share}", costs.cpu_share, "warning", cure)
    elif costs.cpu_share > 1.5:
        cure = "It uses threads of its own, which take the learner's core: limit them where the env is made."
        yield Fact(ENV, "work", f"several cores: {share}", costs.cpu_share, "warning", cure)
    else:
        yield Fact(ENV, "work", f"busy: {share}", costs.cpu_share)


def _failure(env: str, stage: str, error: BaseException) -> Fact:
    """What `train` would end with."""
    shown = (
        str(error)
        if isinstance(error, FreewheelError)
        else f"{env} raised {type(error).__name__}: {error} while {stage}"
    )
    cause = error.__cause__ if isinstance(error, EnvError) else None if isinstance(error, ConfigError) else error
    trace = "".join(traceback.format_exception(cause)) if cause is not None else ""
    cure = ""
    if any(word in f"{shown} {trace}".lower() for word in SCREEN_WORDS):
        cure = "If it wants a screen: make it without render_mode, or set SDL_VIDEODRIVER=dummy or MUJOCO_GL=egl, or use xvfb-run."
    return Fact(ENV, stage, shown, type(error).__name__, "problem", cure, trace)


def _seconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f} ms" if seconds < 1 else f"{seconds:,.1f} s"


def _stderr_bytes() -> int:
    sys.stderr.flush()
    return os.fstat(2).st_size
