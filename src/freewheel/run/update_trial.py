"""Chooses the form of an update: measured in a throwaway process, with the run's own network and batch size."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from freewheel.machine import trial
from freewheel.machine import update_form as forms
from freewheel.machine.malloc import keep_memory
from freewheel.machine.trial import Choice, Measured
from freewheel.machine.update_form import Form
from freewheel.memory.nested import leaves, num_rows, rows_at, rows_of
from freewheel.run.build import build_learner
from freewheel.run.plan import Plan, PolicyPlan
from freewheel.run.worker_control import one_update

# The trial delays the first run with a network on a machine: no round begins after BUDGET_S.
LEAST_ROUNDS, BUDGET_S = 2, 8.0
# A form that takes this many times as long as the best is dropped.
HOPELESS = 1.5
TIMEOUT_S = 60.0
# Above this load per core before the trial, the result may be different another time and is not kept.
BUSY_SHARE = 0.5


def choose(plan: Plan, policy: PolicyPlan, algo: Any, cores: int, chosen: str) -> Choice[Form]:
    """The fastest form of a policy's updates, from the cache, or measured if the run is long enough.

    `chosen` is the precision, unless the settings leave it open.
    """
    config, device = policy.config.learner, policy.device.partition(":")[0]
    open_forms = forms.candidates(config, algo.net, cores, device, chosen)
    key = forms.key_of(algo.net, algo.batch_rows // config.accumulate, open_forms, policy.spaces.obs, policy.device)
    first = open_forms[0]
    if len(open_forms) == 1:
        return Choice(first, key=key)
    measured = trial.recall(key, open_forms)
    if measured is None or not measured.times[first]:
        if policy.num_updates(plan.config.steps) < forms.LEAST_UPDATES:
            is_asked = config.precision == "auto"
            return Choice(first, f"The update uses {first}: the run is too short for a trial." * is_asked, key=key)
        load = os.getloadavg()[0]
        measured = try_forms(plan, policy, open_forms)
        if not measured.times[first]:  # the first form failed, so the trial says nothing about the others
            return Choice(first, f"The update uses {first}: the trial failed ({measured.failure}).", key=key)
        if load <= BUSY_SHARE * cores:
            trial.remember(key, measured)
    best = forms.fastest(measured.times, config.compile != "off")
    reason = f"The update uses {best}, by the time of one gradient: {forms.sentence(measured)}{measured.suffix}."
    return Choice(best, reason, key)


def try_forms(plan: Plan, policy: PolicyPlan, open_forms: Sequence[Form]) -> Measured[Form]:
    """Seconds of one gradient in each form. A form that kills the process has none."""
    report = trial.throwaway(
        time_gradients, plan, policy.index, open_forms, timeout_s=TIMEOUT_S, needs=tuple(plan.given())
    )
    times: dict[Form, list[float]] = {form: [] for form in open_forms}
    for number, seconds in report.told:
        times[open_forms[number]].append(seconds)
    return Measured(times, report.failure)


def time_gradients(plan: Plan, index: int, open_forms: Sequence[Form], tell: Callable[[Any], None]) -> None:
    """Sends [number of the form, seconds] after each gradient."""
    keep_memory()  # as in the learner's process
    learner = build_learner(plan, plan.policies[index])
    update = learner.update
    batch, draws = one_part(*one_update(learner), update.config.accumulate)

    def seconds_of(form: Form) -> float:
        torch.set_num_threads(form.threads)
        update.passes.take_form(form.precision, form.memory_format)
        start = time.perf_counter()
        update.gradient(batch, draws)
        return time.perf_counter() - start

    # One precision after the other: if a later one kills the process, the times of the earlier ones are known.
    for name in dict.fromkeys(form.precision for form in open_forms):
        alike = [form for form in open_forms if form.precision == name]
        for form in alike:
            seconds_of(form)  # the first gradient allocates
        rounds = trial.interleaved(alike, seconds_of, least_rounds=LEAST_ROUNDS, budget_s=BUDGET_S, hopeless=HOPELESS)
        for form, seconds in rounds:
            tell([open_forms.index(form), seconds])
    learner.close()


def one_part(batch: Any, draws: Any, accumulate: int) -> tuple[Any, Any]:
    """The rows of one gradient: the first of an update's `accumulate` parts, with random pixels."""
    batch, draws = rows_of(batch, draws, 0, num_rows(batch) // accumulate)
    for tensor in leaves(rows_at({k: v for k, v in batch.items() if k.endswith("obs")}, 0, num_rows(batch))):
        if tensor.dtype == torch.uint8:
            tensor.random_(0, 256)
    return batch, draws
