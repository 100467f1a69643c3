"""Which form of the update is the fastest here: a process that is thrown away tries each with the run's own network and batch."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import nn

from freewheel.config import Config
from freewheel.learners import forms
from freewheel.learners.forms import Form
from freewheel.learners.heap import keep_memory
from freewheel.learners.nested import leaves, nth, num_rows, rows_at, rows_of
from freewheel.run import role
from freewheel.run.guard import start_forkserver
from freewheel.run.job import Job
from freewheel.run.learning import build_learner

# A run of fewer updates is over before another form has repaid the trial.
LEAST_UPDATES = 2_000
# Rounds are begun until the first of these: the trial delays the start of the first run with a network on a machine.
MOST_ROUNDS, BUDGET_S = 5, 8.0
LEAST_ROUNDS = 2
# Forms that take so many times as long as the best are left out of later rounds.
HOPELESS = 1.5
# A machine that had so many programs running per core before the trial may decide otherwise on another day.
BUSY_SHARE = 0.5
# Without a word for so long it hangs.
TIMEOUT_S = 60.0

Times = dict[Form, list[float]]


def choose(job: Job, net: nn.Module, cores: int, chosen: str) -> tuple[Form, str, str]:
    """(form, what is told of it, key under which it is remembered). Tried only where something is open and enough is to come."""
    config, device = job.config.learner, job.device.partition(":")[0]
    open_forms = forms.candidates(config, net, cores, device, chosen)
    first = open_forms[0]
    key = forms.key_of(net, config.batch_size // config.accumulate, open_forms, job.obs_space, job.device)
    if len(open_forms) == 1:
        return first, "", key
    may_compile = config.compile != "off"
    known = forms.recall(key)
    if known is not None and (found := _read(known, open_forms)) is not None:
        best = forms.fastest(found, may_compile)
        return best, f"{_told(best, found, known.get('died', ''))} (remembered)", key
    if updates_of(job.config) < LEAST_UPDATES:
        return first, "", key
    load = os.getloadavg()[0]
    found, died = try_forms(job, open_forms)
    if not found[first]:  # not even that ran: nothing was learned of the others
        return first, f"learner: {first}; the trial of others failed ({died})", key
    if load <= BUSY_SHARE * cores:  # else another day may tell otherwise
        forms.remember(key, {"times": [found[form] for form in open_forms], "died": died})
    best = forms.fastest(found, may_compile)
    return best, _told(best, found, died), key


def known_gain(job: Job) -> float | None:
    """How many times as fast compiled updates were, if they were tried here before."""
    gain = (forms.recall(job.form_key) or {}).get("compiled") if job.form_key else None
    return gain if isinstance(gain, float) and gain > 0 else None


def updates_of(config: Config) -> float:
    return config.steps * config.learner.ratio / config.learner.batch_size


def try_forms(job: Job, open_forms: Sequence[Form]) -> tuple[Times, str]:
    """Seconds of one gradient in each form, round by round; why the process died, if it did: the form it was at has then no time."""
    found: Times = {form: [] for form in open_forms}
    start_forkserver()
    context = multiprocessing.get_context("forkserver")
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(job, open_forms, writer), daemon=True)
    process.start()
    writer.close()
    died = ""
    try:
        while reader.poll(TIMEOUT_S):
            message = reader.recv_bytes()
            number, _, seconds = message.partition(b" ")
            found[open_forms[int(number)]].append(float(seconds))
        died = f"no answer within {TIMEOUT_S:.0f} s"
    except EOFError:
        process.join(TIMEOUT_S)
        died = _how(process.exitcode)
    finally:
        reader.close()
        if process.is_alive():
            process.kill()
        process.join()
        process.close()
    return found, died


def _child(job: Job, open_forms: Sequence[Form], writer: Connection) -> None:
    role.begin(job.parent, job.owner)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # its death is no news
    keep_memory()  # as the learner itself
    learner = build_learner(job)
    step, (batch, draws) = (
        learner.step,
        one_part(*learner.example(), learner.step.unrolled, job.config.learner.accumulate),
    )
    numbers = {form: number for number, form in enumerate(open_forms)}

    def try_one(form: Form) -> float:
        torch.set_num_threads(form.threads)
        step.take_form(form.precision, form.memory_format)
        start = time.perf_counter()
        step.gradient(batch, draws)
        return time.perf_counter() - start

    # What may die of its precision comes when all is known of the others.
    for name in dict.fromkeys(form.precision for form in open_forms):
        alike = [form for form in open_forms if form.precision == name]
        for form, seconds in rounds_of(alike, try_one):
            writer.send_bytes(b"%d %.9f" % (numbers[form], seconds))
    learner.replay.close()


def rounds_of(alike: Sequence[Form], try_one: Callable[[Form], float]) -> Iterator[tuple[Form, float]]:
    """In turn, so that a busy moment meets all of them; those without hope drop out."""
    left, best = list(alike), float("inf")
    for form in left:
        try_one(form)  # the first allocates
    begun = time.perf_counter()
    for turn in range(1, MOST_ROUNDS + 1):
        times = {form: try_one(form) for form in left}
        yield from times.items()
        best = min(best, *times.values())
        if turn < LEAST_ROUNDS:
            continue
        left = [form for form in left if times[form] <= HOPELESS * best]
        if not left or time.perf_counter() - begun > BUDGET_S:
            return


def one_part(batch: Any, draws: Any, unrolled: int, accumulate: int) -> tuple[Any, Any]:
    """What one gradient is worked out from: of several updates the first, of several parts the first; pixels are any."""
    if unrolled > 1:
        batch, draws = nth(batch, 0), nth(draws, 0)
    batch, draws = rows_of(batch, draws, 0, num_rows(batch) // accumulate)
    for tensor in leaves(rows_at({"obs": batch["obs"], "next_obs": batch["next_obs"]}, 0, num_rows(batch))):
        if tensor.dtype == torch.uint8:
            tensor.random_(0, 256)
    return batch, draws


def _read(known: dict[str, Any], open_forms: Sequence[Form]) -> Times | None:
    """Whatever is not what we write is none."""
    times = known.get("times")
    if not isinstance(times, list) or len(times) != len(open_forms) or not times[0]:
        return None
    if not all(isinstance(each, list) and all(isinstance(one, float) for one in each) for each in times):
        return None
    return dict(zip(open_forms, times, strict=True))


def _told(form: Form, found: Times, died: str) -> str:
    return f"learner: {form}, by the time of one gradient here: {forms.sentence(found, died)}"


def _how(code: int | None) -> str:
    if code is None or code >= 0:
        return f"exit code {code}" if code else ""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
