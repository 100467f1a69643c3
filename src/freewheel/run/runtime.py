"""From settings to a runtime that is ready to start: the world, the plan, and what is fastest here for each policy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from freewheel.algos.make import seed_of
from freewheel.errors import ConfigError
from freewheel.learners.target_process import TargetValues
from freewheel.machine import precision
from freewheel.machine.cores import num_cores
from freewheel.machine.device import cuda_devices, pick_device, place, prepare
from freewheel.machine.process import start_forkserver
from freewheel.machine.trial import Choice
from freewheel.machine.update_form import settled_here
from freewheel.nets.inputs import has_images
from freewheel.run import update_trial
from freewheel.run.build import build_learner
from freewheel.run.layout import choose
from freewheel.run.local import Local
from freewheel.run.plan import Plan, PolicyPlan, Setup, make_plan
from freewheel.run.prepare import refuse_pool, refuse_without_effect
from freewheel.run.sequential import Sequential
from freewheel.run.worker_control import make_workers
from freewheel.worlds.choose import choose_apart, groups_apart
from freewheel.worlds.make import make_world
from freewheel.worlds.world import Group, World


def make_runtime(setup: Setup) -> Sequential | Local:
    """Builds and checks everything that a run needs. Starts nothing yet."""
    return Local(plan_local(setup)) if setup.layout.runtime == "local" else make_sequential(setup)


def make_sequential(setup: Setup) -> Sequential:
    torch.set_num_threads(setup.config.learner.threads or 1)
    world = _sequential_world(setup)
    try:
        plan = make_plan(setup, world.groups)
        refuse_without_effect(plan, setup)
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


def _sequential_world(setup: Setup) -> World:
    """A pool gives all lanes together, so that the run is repeatable."""
    world = setup.config.world
    if world.kind == "pool":
        start_forkserver()  # loads what later roles need too
        world = replace(world, min_ready=world.min_ready or world.lanes)
    return make_world(setup.env, world, seed_of(setup.config, "world"))


def plan_local(setup: Setup) -> Plan:
    """Shared memory and everything that the roles need. Refuses what cannot work before any process starts."""
    pick_device(setup.config.learner.device)
    pick_device(setup.config.local.act_device, "local.act_device")
    groups = _groups(setup)
    plan = make_plan(setup, groups)
    refuse_without_effect(plan, setup)
    settled, reason = settled_world(setup)
    if settled.config != setup.config:
        del plan  # frees its shared memory before the next plan takes some
        plan = make_plan(settled, groups)
    plan.notes += [reason] if reason else []
    refuse_pool(plan, setup.given)
    for policy in plan.policies:
        _settle(plan, policy)
    return plan


def settled_world(setup: Setup) -> tuple[Setup, str]:
    """The setup with the fastest kind of world on this machine, and the reason for it."""
    config = setup.config
    choice = choose_apart(setup.env, config.world, setup.layout.actors, config.local.step_timeout_s)
    if not choice.reason:
        return setup, ""
    config = replace(config, world=choice.chosen)
    return replace(setup, config=config, layout=choose(config, num_cores())), choice.reason


def _groups(setup: Setup) -> list[Group]:
    """The groups of all lanes together. One env shows the spaces; a vector env may only exist for its own number of lanes."""
    config = setup.config
    lanes = setup.layout.lanes_per_actor[0] if config.world.kind == "vector" else 1
    kind: Any = "inline" if config.world.kind == "pool" else config.world.kind
    groups = groups_apart(setup.env, replace(config.world, lanes=lanes, kind=kind), seed_of(config, "probe"))
    share = config.world.lanes / lanes
    return [replace(group, num_lanes=round(group.num_lanes * share)) for group in groups]


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
    numbers = Choice("fp32")  # with auto, the trial of forms chooses the precision
    if learner.precision != "auto" or not has_images(algo.net):
        numbers = precision.choose(learner.precision, policy.device.partition(":")[0])
    cores = max(num_cores() - plan.layout.actors, 1) if algo.shares_cores else num_cores()
    form = update_trial.choose(plan, policy, algo, cores, numbers.chosen)
    policy.form, policy.form_key = form.chosen, form.key
    plan.notes += [reason for reason in (form.reason, numbers.reason) if reason]
    if is_apart or policy.device == "cpu":
        _share_work(plan, policy, is_apart)


def _share_work(plan: Plan, policy: PolicyPlan, is_apart: bool) -> None:
    """Shared memory for gradient workers and for a target process, where the run may use them."""
    config, cores = policy.config.learner, num_cores()
    learner = build_learner(plan, policy, device="cpu")  # only for its shapes: this process uses no device
    try:
        if is_apart or (config.workers != 1 and (config.workers or policy.form.threads == 1)):
            policy.workers = make_workers(learner, config.workers, cores, is_apart)
        # A target process needs a core that the learner's threads leave free.
        has_core = cores > policy.form.threads and not is_apart
        if policy.config.local.target_process and config.compile != "off" and learner.update.has_lookahead and has_core:
            example = learner.memory.example()
            seen, found = learner.update.target_inputs(*example), learner.update.lookahead(*example)
            policy.targets = TargetValues(learner.update.state.target, seen, found, learner.memory.num_groups)
    finally:
        learner.close()
