"""The parts of a run, built from its plan: the actor and the learners, the same for every algorithm and runtime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from freewheel.actors.actor import Actor, GroupActor, Weights
from freewheel.algos.make import seed_of
from freewheel.config import Config
from freewheel.contracts import Policy
from freewheel.learners.learner import Learner
from freewheel.learners.update import Update
from freewheel.machine.device import prepare
from freewheel.machine.process import start_forkserver
from freewheel.nets.flat import Flat
from freewheel.report.ledger import Page
from freewheel.run.plan import Plan, PolicyPlan
from freewheel.weights.board import Fetcher, Publisher
from freewheel.worlds.make import make_world
from freewheel.worlds.world import World


class LearnersOwn:
    """The weights of a policy that acts in its learner's process: there is nothing to copy."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner

    @property
    def version(self) -> int:
        return self._learner.version

    def fetch(self) -> bool:
        return False


def make_world_here(env: Any, config: Config) -> World:
    """The world of a run in one process: a pool gives all lanes together, so that the run can be repeated."""
    world = config.world
    if world.kind == "pool":
        start_forkserver()  # with all that later roles need too
        world = replace(world, min_ready=world.min_ready or world.lanes)
    return make_world(env, world, seed_of(config, "world"))


def build_update(policy: PolicyPlan, device: str, algo: Any = None) -> Update:
    """As the learner has it, and those who share its gradients."""
    prepare(device)
    algo = algo or policy.algo()
    return Update(
        algo,
        policy.config.learner,
        unrolled=algo.updates_together(),
        precision=policy.form.precision,
        memory_format=policy.form.memory_format,
        device=device,
    )


def build_learner(plan: Plan, policy: PolicyPlan, page: Page | None = None, device: str | None = None) -> Learner:
    """As the learner's process has it, and as the one that compiles for it; on its own device, unless another one is named."""
    is_local = plan.layout.runtime == "local"
    algo, config = policy.algo(), policy.config
    return Learner(
        algo,
        build_update(policy, device or policy.device, algo),
        algo.memory(policy.lanes, policy.seed, prefetch=config.local.prefetch if is_local else 0),
        build_pace(plan, policy, algo),
        replace(config, steps=plan.config.steps),
        publisher=Publisher(policy.board, *algo.publish_every()) if is_local else None,
        bootstraps=policy.bootstraps,
        dials=policy.dials,
        page=page,
    )


def build_pace(plan: Plan, policy: PolicyPlan, algo: Any) -> Any:
    is_local = plan.layout.runtime == "local"
    pace = algo.pace(plan.counts.of(policy.index), policy.spaces.num_lanes, is_local, policy.dials)
    pace.set_state(policy.pace_state)
    return pace


def bound(net: nn.Module) -> tuple[nn.Module, Any]:
    """A network whose numbers are those of a vector from now on, and the vector."""
    flat = Flat(net)
    vector = flat.vector(net)
    return flat.bind(net, vector).eval().requires_grad_(False), vector


def build_actor(plan: Plan, world: World, learners: Sequence[Learner], page: Page | None = None) -> Actor:
    """The actor of a run in one process: it reads the learners' own numbers."""
    groups = []
    for policy, learner in zip(plan.policies, learners, strict=True):
        lanes = range(policy.spaces.num_lanes)
        acting = learner.algo.policy(learner.update.passes.eval_net, policy.seed, lanes, len(lanes), policy.dials)
        groups.append(seat(plan, policy, world, acting, LearnersOwn(learner), learner.pace, lanes, page))
    return Actor(world, groups, page)


def seat(
    plan: Plan,
    policy: PolicyPlan,
    world: World,
    acting: Policy,
    weights: Weights,
    pace: Any,
    lanes: range,
    page: Page | None,
) -> GroupActor:
    """A policy at its group of a world, with the right to write these lanes."""
    return GroupActor(
        policy.group,
        world.groups[policy.group],
        acting,
        weights,
        policy.lanes,
        policy.lanes.writer(lanes),
        plan.counts.of(policy.index),
        pace,
        plan.config.world,
        first_lane=lanes.start,
        bootstraps=policy.bootstraps,
        page=page,
    )


class Acting:
    """A policy with weights of its own, which follow those that its learner publishes: for actors in other processes, and to play."""

    def __init__(self, policy: PolicyPlan, seed: Callable[[str], int], lanes: range) -> None:
        self.algo = policy.algo()
        self.net, vector = bound(self.algo.net)
        self.weights = Fetcher(policy.board, vector)
        self.policy: Policy = self.algo.policy(self.net, seed, lanes, policy.spaces.num_lanes, policy.dials)
