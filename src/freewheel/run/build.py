"""Builds actors and learners from a plan, in the same way for every algorithm and runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from freewheel.actors.actor import Actor, GroupActor, Weights
from freewheel.contracts import Policy
from freewheel.learners.learner import Learner
from freewheel.learners.update import Update
from freewheel.machine.device import prepare
from freewheel.nets.flat import Flat
from freewheel.report.ledger import Page
from freewheel.run.plan import Plan, PolicyPlan
from freewheel.weights.board import Fetcher, HostCopy, Publisher
from freewheel.worlds.world import World


def build_update(policy: PolicyPlan, device: str, algo: Any = None) -> Update:
    """For the learner, and for its gradient workers."""
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
    """For the learner's process, and for the process that compiles for it; on its own device unless another is named."""
    is_local = plan.layout.runtime == "local"
    algo, config = policy.algo(), policy.config
    update = build_update(policy, device or policy.device, algo)
    return Learner(
        algo,
        update,
        algo.memory(policy.lanes, policy.seed, prefetch=config.local.prefetch if is_local else 0),
        build_pace(plan, policy, algo),
        replace(config, steps=plan.config.steps),
        publisher=_publisher(policy, update) if is_local else None,
        bootstraps=policy.bootstraps,
        dials=policy.dials,
        page=page,
    )


def _publisher(policy: PolicyPlan, update: Update) -> Publisher:
    flat = update.flat
    return Publisher(
        policy.board,
        *update.algo.publish_every(),
        least_change=policy.config.local.publish_least_change,
        num_params=flat.num_params,
        copy=HostCopy(flat.size, update.device) if update.device.type == "cuda" else None,
    )


def build_pace(plan: Plan, policy: PolicyPlan, algo: Any) -> Any:
    is_local = plan.layout.runtime == "local"
    pace = algo.pace(plan.counts.of(policy.index), policy.spaces.num_lanes, is_local, policy.dials)
    pace.set_state(policy.pace_state)
    return pace


class Player(NamedTuple):
    """How an actor plays one policy."""

    policy: Policy
    weights: Weights
    pace: Any


def player_of(policy: PolicyPlan, learner: Learner) -> Player:
    """Of a learner in the same process: the actor uses the learner's own weights."""
    lanes = range(policy.spaces.num_lanes)
    acting = learner.algo.policy(learner.update.passes.eval_net, policy.seed, lanes, len(lanes), policy.dials)
    return Player(acting, learner, learner.pace)


class Acting:
    """A policy with its own copy of the weights that its learner publishes: for actors in other processes, and for evaluation."""

    def __init__(self, policy: PolicyPlan, seed: Callable[[str], int], lanes: range) -> None:
        self.algo = policy.algo()
        flat = Flat(self.algo.net)
        vector = flat.vector(self.algo.net)
        self.net = flat.bind(self.algo.net, vector).eval().requires_grad_(False)
        local = policy.config.local
        self.weights = Fetcher(policy.board, vector, local.fetch_every_steps, local.fetch_every_s)
        self.policy: Policy = self.algo.policy(self.net, seed, lanes, policy.spaces.num_lanes, policy.dials)


def build_actor(plan: Plan, world: World, players: Iterable[Player], page: Page, copies: range | None = None) -> Actor:
    """An actor that steps these copies of the env, or all of them, and writes their lanes."""
    groups = []
    for policy, player in zip(plan.policies, players, strict=True):
        lanes = range(policy.spaces.num_lanes) if copies is None else policy.own_lanes(copies)
        group = GroupActor(
            policy.index,
            world.groups[policy.index],
            player.policy,
            player.weights,
            policy.lanes,
            policy.lanes.writer(lanes),
            plan.counts.of(policy.index),
            player.pace,
            plan.config.world,
            first_lane=lanes.start,
            bootstraps=policy.bootstraps,
            page=page,
        )
        groups.append(group)
    return Actor(world, groups, page)
