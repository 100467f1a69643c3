"""From settings to a runtime that is ready to start: the world, the plan, and what is fastest here for each policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch

from freewheel.algos.make import seed_of
from freewheel.config import Config
from freewheel.errors import ConfigError
from freewheel.learners.target_process import TargetValues
from freewheel.machine import precision
from freewheel.machine.cores import num_cores
from freewheel.machine.device import cuda_devices, pick_device, prepare
from freewheel.machine.placement import place
from freewheel.machine.trial import Choice
from freewheel.machine.update_form import settled_here
from freewheel.nets.inputs import has_images
from freewheel.run import update_trial
from freewheel.run.build import build_learner, make_world_here
from freewheel.run.layout import Layout, choose
from freewheel.run.local import Local
from freewheel.run.plan import Plan, PolicyPlan, make_plan
from freewheel.run.prepare import Prepared, refuse_pool, refuse_without_effect
from freewheel.run.sequential import Sequential
from freewheel.run.worker_control import make_workers
from freewheel.worlds.make import make_world
from freewheel.worlds.trial import choose_apart
from freewheel.worlds.world import Group

Policies = Mapping[str, Config] | None
NOTHING: Mapping[str, Any] = MappingProxyType({})


def make_runtime(prepared: Prepared) -> Sequential | Local:
    """Everything that a run needs, checked against each other; nothing is started yet."""
    own = prepared
    if own.layout.runtime == "local":
        return Local(plan_local(own.config, own.env, own.layout, own.body, own.loss, own.policies, own.given))
    return make_sequential(own.config, own.env, own.layout, own.body, own.loss, own.policies, own.given)


def make_sequential(
    config: Config,
    env: Any,
    layout: Layout,
    body: Any = None,
    loss: Any = None,
    policies: Policies = None,
    given: Mapping[str, Any] = NOTHING,
) -> Sequential:
    torch.set_num_threads(config.learner.threads or 1)
    world = make_world_here(env, config)
    try:
        plan = make_plan(config, env, layout, world.groups, body=body, loss=loss, policies=policies)
        refuse_without_effect(plan, given)
        for policy in plan.policies:
            device = pick_device(policy.config.learner.device)
            prepare(device)
            numbers = precision.choose(policy.config.learner.precision, device.type)
            form = settled_here(policy.config.learner, policy.algo().net, num_cores())
            policy.device, policy.form = str(device), replace(form, precision=numbers.chosen)
            plan.notes += [numbers.reason] if numbers.reason else []
        return Sequential(plan, world)
    except BaseException:
        world.close()
        raise


def plan_local(
    config: Config,
    env: Any,
    layout: Layout,
    body: Any = None,
    loss: Any = None,
    policies: Policies = None,
    given: Mapping[str, Any] = NOTHING,
) -> Plan:
    """Shared memory and all that the roles need; what cannot work is refused before any process starts."""
    pick_device(config.learner.device)
    pick_device(config.local.act_device, "local.act_device")
    parts: dict[str, Any] = {"body": body, "loss": loss, "policies": policies}
    plan = make_plan(config, env, layout, _groups(config, env, layout), **parts)
    refuse_without_effect(plan, given)
    settled, layout, why = settled_world(config, env, layout)
    if settled != config:
        del plan  # its shared memory goes before that of the next
        plan = make_plan(settled, env, layout, _groups(settled, env, layout), **parts)
    plan.notes += [why] if why else []
    refuse_pool(plan, given)
    for policy in plan.policies:
        _settle(plan, policy)
    return plan


def settled_world(config: Config, env: Any, layout: Layout) -> tuple[Config, Layout, str]:
    """The settings and the layout with the world that is best here, and why."""
    choice = choose_apart(env, config.world, layout.actors, config.local.step_timeout_s)
    if not choice.reason:
        return config, layout, ""
    config = replace(config, world=choice.chosen)
    return config, choose(config, num_cores()), choice.reason


def _groups(config: Config, env: Any, layout: Layout) -> list[Group]:
    """Of all lanes. One env shows the spaces; a vector env may be made for its number of lanes alone."""
    lanes = layout.lanes_per_actor[0] if config.world.kind == "vector" else 1
    kind: Any = "inline" if config.world.kind == "pool" else config.world.kind
    world = make_world(env, replace(config.world, lanes=lanes, kind=kind), seed_of(config, "probe"))
    world.close()
    return [_times(group, config.world.lanes / lanes) for group in world.groups]


def _times(group: Group, share: float) -> Group:
    """The group of so many times as many copies of the env."""
    return replace(group, num_lanes=round(group.num_lanes * share))


def _settle(plan: Plan, policy: PolicyPlan) -> None:
    """Device, form, gradient workers and target process of a policy's learner."""
    learner, local = policy.config.learner, policy.config.local
    algo = policy.algo()
    policy.device = str(pick_device(learner.device))
    loads = [len(policy.own_lanes(plan.copies_of(i))) for i in range(plan.layout.actors)]
    ratio = algo.num_updates(10**9) / 10**9 * algo.batch_rows
    policy.placing = place(policy.device, learner.workers, local.act_device, loads, ratio, cuda_devices())
    is_apart = learner.workers > 1 and not policy.device.startswith("cpu")
    if is_apart:
        policy.device = policy.placing.workers[0]
    if local.act_precision == "bf16" and (why := precision.why_not("bf16", "cpu")):
        raise ConfigError(f"local.act_precision=bf16 does not run on this machine ({why}). Leave it out.")
    numbers = Choice("fp32")  # with auto the trial of forms chooses them, and says why
    if learner.precision != "auto" or not has_images(algo.net):
        numbers = precision.choose(learner.precision, policy.device.partition(":")[0])
    cores = max(num_cores() - plan.layout.actors, 1) if algo.shares_cores else num_cores()
    form = update_trial.choose(plan, policy, algo.net, algo.batch_rows, cores, numbers.chosen)
    policy.form, policy.form_key = form.chosen, form.key
    plan.notes += [reason for reason in (form.reason, numbers.reason) if reason]
    if is_apart or policy.device == "cpu":
        _share_work(plan, policy, is_apart)


def _share_work(plan: Plan, policy: PolicyPlan, is_apart: bool) -> None:
    """Memory for gradient workers and for a target process, where there may be some."""
    config, cores = policy.config.learner, num_cores()
    learner = build_learner(plan, policy, device="cpu")  # for its shapes: this process computes on no device
    try:
        if is_apart or (config.workers != 1 and (config.workers or policy.form.threads == 1)):
            policy.workers = make_workers(learner, config.workers, cores, is_apart)
        # Where the learner's threads take all cores there is none for a target process.
        has_core = cores > policy.form.threads and not is_apart
        if policy.config.local.ahead and config.compile != "off" and learner.update.has_lookahead and has_core:
            example = learner.memory.example()
            seen, found = learner.update.seen_ahead(*example), learner.update.lookahead(*example)
            policy.targets = TargetValues(learner.update.state.target, seen, found, learner.memory.num_groups)
    finally:
        learner.close()
