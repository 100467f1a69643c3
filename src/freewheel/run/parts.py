"""The parts of a run, built in the order in which data flows through them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from freewheel.actors.explore import Explorer
from freewheel.actors.infer import Infer
from freewheel.actors.loop import Actor
from freewheel.algos.algo import Algo, Loss
from freewheel.algos.make import make_algo
from freewheel.config import Config
from freewheel.errors import ConfigError
from freewheel.learners import precision
from freewheel.learners.device import pick_device, prepare
from freewheel.learners.forms import settled_here
from freewheel.learners.loop import Learner
from freewheel.learners.step import Step, unrolled
from freewheel.memory.lanes import Lanes, forecast_bytes
from freewheel.memory.replay import Replay
from freewheel.memory.segment import allowed_bytes, format_bytes
from freewheel.nets.build import QNet, build_net
from freewheel.report.ledger import Ledger
from freewheel.report.phases import new_ledger
from freewheel.run.guard import start_forkserver
from freewheel.run.machine import num_cores
from freewheel.spec import RowSpec, Space
from freewheel.worlds.make import make_world
from freewheel.worlds.world import World


@dataclass
class Parts:
    """World → actor → lanes → replay → learner, and its weights back to the actor."""

    world: World
    lanes: Lanes
    actor: Actor
    replay: Replay
    learner: Learner
    ledger: Ledger  # one page: actor and learner take turns
    why_precision: str

    @property
    def precision(self) -> str:
        return self.learner.step.precision

    @property
    def obs_space(self) -> Space:
        return self.world.obs_space

    def close(self) -> None:
        self.replay.close()
        self.world.close()


def seed_of(config: Config, role: str) -> int:
    """Each role draws from a stream of its own, all of them from the run's seed."""
    mixed = np.random.SeedSequence([config.seed, *role.encode()]).generate_state(1, np.uint64)
    return int(mixed[0]) >> 1


def build(config: Config, env: Any, body: Any = None, loss: Loss | None = None) -> Parts:
    """Everything that a run needs, checked against each other; nothing is started yet."""
    torch.set_num_threads(config.learner.threads or 1)
    world = make_world_in_turn(env, config)
    try:
        return _around(world, config, body, loss)
    except BaseException:
        world.close()
        raise


def make_world_in_turn(env: Any, config: Config) -> World:
    """The world of a run in one process: a pool gives all lanes together, so that the run can be repeated."""
    world = config.world
    if world.kind == "pool":
        start_forkserver()  # with all that later roles need too
        world = replace(world, min_ready=world.min_ready or world.lanes)
    return make_world(env, world, seed_of(config, "world"))


def forecast(spec: RowSpec, num_lanes: int, rows: int) -> None:
    """Refuses a replay that this machine cannot hold, with the number of rows that it can."""
    needed = forecast_bytes(spec, num_lanes, rows // num_lanes)
    allowed, source = allowed_bytes()
    if needed > allowed:
        fitting = max(int(rows * allowed / needed * 0.9), 1)
        fitting = int(float(f"{fitting:.1g}"))
        size = format_bytes(forecast_bytes(spec, num_lanes, max(fitting // num_lanes, 2)))
        raise ConfigError(
            f"replay.rows={rows:_} needs {format_bytes(needed)}, {source} allows {format_bytes(allowed)}. "
            f"Try --replay.rows {fitting:_} ({size})."
        )


def build_policy(
    config: Config, obs_space: Space, action_space: Space, body: Any, loss: Loss | None
) -> tuple[QNet, Algo]:
    """The network with its first weights, the same in every process, and its algorithm."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(config, "net"))
        net = build_net(obs_space, action_space, config.net, config.q, config.algo, config.world.stack, body=body)
    return net, make_algo(config.algo, config.q, net, loss)


def build_replay(lanes: Lanes, config: Config, unrolled: int = 1, prefetch: int = 0) -> Replay:
    """Draws for all updates of a call at once, where the warm-up has so many rows; at least for the `unrolled` of one graph.

    Each draw may wake a thread and a process, which costs as much as some small updates.
    """
    learner = config.learner
    most = config.replay.warmup_rows // learner.batch_size
    counts = range(unrolled, learner.updates_per_call + 1, unrolled)
    fitting = [n for n in counts if learner.updates_per_call % n == 0 and n <= most]
    return Replay(
        lanes,
        learner.batch_size * max(fitting, default=unrolled),
        n_step=config.q.n_step,
        gamma=config.q.gamma,
        stack=config.world.stack,
        prioritized=config.replay.prioritized,
        alpha=config.replay.alpha,
        seed=seed_of(config, "replay"),
        prefetch=prefetch,
    )


def updates_together(config: Config) -> int:
    """Updates that are drawn and made at once, as one graph if they are compiled.

    In turn (sequential) nothing is compiled unless it is asked for: a run is repeatable only if it always takes the same way.
    """
    learner, warmup = config.learner, config.replay.warmup_rows
    if learner.compile == "off" or (learner.compile == "auto" and (config.runtime != "local" or learner.workers > 1)):
        return 1
    most = unrolled(learner.updates_per_call)
    if learner.compile == "auto":
        fits = [n for n in range(1, most + 1) if learner.updates_per_call % n == 0 and n * learner.batch_size <= warmup]
        return max(fits)
    if most * learner.batch_size > warmup:
        raise ConfigError(
            f"learner.compile=on draws {most * learner.batch_size} rows at once (learner.batch_size={learner.batch_size}, "
            f"learner.updates_per_call={learner.updates_per_call}), more than replay.warmup_rows={warmup}. "
            "Raise the last or lower one of the others."
        )
    return most


def _around(world: World, config: Config, body: Any, loss: Loss | None) -> Parts:
    net, algo = build_policy(config, world.obs_space, world.action_space, body, loss)
    spec = RowSpec.of(world.obs_space, world.action_space)
    forecast(spec, world.num_lanes, config.replay.rows)
    lanes = Lanes(spec, world.num_lanes, config.replay.rows // world.num_lanes)
    together = updates_together(config)
    device = pick_device(config.learner.device)
    prepare(device)
    chosen, why = precision.choose(config.learner.precision, device.type)
    form = settled_here(config.learner, net, num_cores())
    torch.set_num_threads(form.threads)
    step = Step(
        net,
        algo,
        config.learner,
        unrolled=together,
        precision=chosen,
        memory_format=form.memory_format,
        device=device,
    )
    # The actor reads the learner's own numbers: in one process, in turn, there is nothing to copy.
    infer = Infer(step.eval_net, algo, world.action_space.dtype, seed_of(config, "noise"), world.num_lanes)
    explorer = Explorer(config.explore, world.num_lanes, net.num_actions, seed_of(config, "explore"), config.q.noisy)
    ledger = new_ledger(1)
    page = ledger.page(0)
    actor = Actor(world, lanes.writer(), infer, explorer, config.world, page=page)
    replay = build_replay(lanes, config, together)
    learner = Learner(step, replay, config, seed_of(config, "learner"), page)
    if config.learner.compile == "on":
        step.compile(*learner.example())
    return Parts(world, lanes, actor, replay, learner, ledger, why)
