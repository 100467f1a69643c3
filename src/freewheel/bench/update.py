"""`freewheel bench update`: one whole update on one core, eager and compiled; that of DQN beside plain torch."""

from __future__ import annotations

import itertools
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from freewheel.algos.make import make_algo
from freewheel.bench import algo_update, update_plain
from freewheel.bench.checks import check_names, check_numbers, check_rounds
from freewheel.bench.harness import (
    OURS,
    Bar,
    Case,
    Machine,
    Measure,
    describe_machine,
    interleave,
    progress,
    report,
    warn_if_busy,
)
from freewheel.bench.settings import UpdateSettings
from freewheel.bench.worker import update_data as data
from freewheel.bench.worker.window import measure_us
from freewheel.config import assemble
from freewheel.contracts import Spaces
from freewheel.errors import ConfigError, FreewheelError
from freewheel.learners.update import MOST_UNROLLED, Update
from freewheel.machine.threads import environment_kept

EAGER, COMPILED = "eager", "compiled"
PLAIN = update_plain.WAYS
BASELINE = PLAIN[0]

GOALS = {"update/compiled/128": 4.0}

# After the first 32 updates every way has the same loss but for the order of its additions.
LOSS_TOLERANCE = 1e-3


@dataclass
class Way:
    """Who makes updates: how to measure one, what its loss was after the first 32, and how long its first call took."""

    measure: Measure  # microseconds per update
    loss: float
    first_s: float


Ways = dict[tuple[str, str], Way]  # by "update/ROWS" and name; a form of ours is called "ours eager"
Figures = Mapping[tuple[str, str], list[float]]


def run(settings: UpdateSettings) -> list[Case]:
    """Measure, print, and give the cases."""
    if settings.algo != "dqn":
        return run_algo(settings)
    against = list(PLAIN) if settings.against is None else check_names(settings.against, PLAIN, "way")
    machine, ways, figures = measure(settings, against)
    cases = [case for rows in settings.batches for case in make_cases(rows, settings.ours, ways, figures)]
    report("update", machine, cases, as_json=settings.json)
    return cases


def run_algo(settings: UpdateSettings) -> list[Case]:
    """The same for an algorithm that nothing stands beside."""
    forms = check(settings)
    if settings.against:
        raise ConfigError(f"--against makes the update of dqn, and --algo is {settings.algo}. Leave it out.")
    torch.set_num_threads(1)
    machine = describe_machine({})
    warn_if_busy(machine)
    with one_core(), progress("bench update", len(settings.batches) * len(forms) * settings.rounds) as bar:
        cases = algo_update.measure(
            settings.algo, settings.env, settings.batches, forms, settings.rounds, settings.seconds, bar
        )
    report("update", machine, cases, as_json=settings.json)
    return cases


def measure(
    settings: UpdateSettings, plain: Sequence[str], open_more: Callable[[ExitStack, Bar], Ways] | None = None
) -> tuple[Machine, Ways, Figures]:
    """Ours, these ways of plain torch, and those that `open_more` gives, in the same rounds on the same core."""
    forms = check(settings)
    torch.set_num_threads(1)
    machine = describe_machine({})
    warn_if_busy(machine)
    windows = len(settings.batches) * (len(forms) + len(plain)) * settings.rounds
    with ExitStack() as closing, progress("bench update", windows) as bar:
        ways: Ways = {}
        with empty_compile_cache():
            for rows in settings.batches:
                ways |= open_here(forms, plain, rows, settings.seconds, bar)
        closing.enter_context(one_core())
        if open_more is not None:
            more = open_more(closing, bar)
            bar.grow(len(more) * settings.rounds)
            ways |= more
        check_same(ways)
        figures = interleave({key: way.measure for key, way in ways.items()}, settings.rounds, bar)
    return machine, ways, figures


def check(settings: UpdateSettings) -> list[str]:
    """The forms of ours to measure."""
    check_rounds(settings.rounds, settings.seconds)
    check_numbers(batches=settings.batches)
    forms = check_names(settings.ours, (EAGER, COMPILED), "form of ours")
    if not forms:
        raise ConfigError(f"--ours none leaves nothing to measure. Choose from {EAGER}, {COMPILED}.")
    return forms


def make_cases(rows: int, forms: Sequence[str], ways: Ways, figures: Figures) -> list[Case]:
    """Each form of ours against plain torch."""
    measured = {who: figures[case, who] for case, who in ways if case == f"update/{rows}"}
    first_s = {who: round(way.first_s, 2) for (case, who), way in ways.items() if case == f"update/{rows}"}
    baselines = {who: measured[who] for who in PLAIN if who in measured}
    cases = []
    for form in dict.fromkeys(forms):
        who, name = f"{OURS} {form}", f"update/{form}/{rows}"
        case = Case(name, "us", measured[who], baselines=baselines, goal=GOALS.get(name))
        case.baseline = BASELINE if BASELINE in baselines else None
        case.extra = {"first_call_s": first_s, "updates_per_call": 1}
        if form == COMPILED:
            case.extra |= {"updates_per_call": MOST_UNROLLED, "compile_s": first_s[who]}
            case.extra["notes"] = [f"{name}: compiling took {first_s[who]:.0f} s, with nothing compiled before."]
        cases.append(case)
    return cases


def open_here(forms: Sequence[str], plain: Sequence[str], rows: int, seconds: float, bar: Bar) -> Ways:
    """The ways that run in this process, each compiled if it is to be, and brought to update 32."""
    opened: Ways = {}
    for form in forms:
        bar.show(f"{OURS} {form}, batch {rows}: first updates")
        opened[f"update/{rows}", f"{OURS} {form}"] = _opened(*our_call(form == COMPILED, rows), seconds)
    for way in plain:
        bar.show(f"{way}, batch {rows}: first updates")
        opened[f"update/{rows}", way] = _opened(update_plain.make_call(way, rows), 1, seconds)
    return opened


def our_call(is_compiled: bool, rows: int) -> tuple[Callable[[], Tensor], int]:
    """Our update as the learner makes it, and how many of them one call makes."""
    given = {
        "net.hidden": data.SIZES[1:-1],
        "q.double": False,
        "q.gamma": data.GAMMA,
        "q.huber": data.HUBER,
        "replay.warmup_rows": max(rows, 1_000),
        "learner.batch_size": rows,
        "learner.clip_norm": data.CLIP_NORM,
        "learner.beta1": data.BETA1,
        "learner.beta2": data.BETA2,
        "learner.adam_eps": data.ADAM_EPS,
        "learner.target_every_updates": data.TARGET_EVERY,
    }
    config = assemble("CartPole-v1", given, preset="none")
    box = spaces.Box(-math.inf, math.inf, (data.SIZES[0],), np.float32)
    algo = make_algo(config, Spaces(box, spaces.Discrete(data.SIZES[-1]), 1))
    update_plain.set_weights(algo.net)
    update = Update(algo, config.learner, unrolled=MOST_UNROLLED if is_compiled else 1)
    tensors = {name: torch.from_numpy(values) for name, values in data.batches(rows).items()}
    # The learner always has importance weights; plain DQN does without.
    tensors["weight"] = torch.ones(data.NUM_BATCHES, rows)
    size = update.unrolled
    places = [slice(i, i + size) if size > 1 else i for i in range(0, data.NUM_BATCHES, size)]
    take = itertools.cycle([{name: values[place] for name, values in tensors.items()} for place in places])

    def call() -> Tensor:
        batch = next(take)
        if is_compiled and not update.is_compiled:
            update.compile(batch, {})
        return update(batch, {}, {"lr": data.LR}).loss

    return call, size


def check_same(ways: Ways) -> None:
    """Whoever does less work than the others would be faster for nothing: all must have come to the same loss."""
    for case in dict.fromkeys(case for case, _ in ways):
        losses = {who: way.loss for (of, who), way in ways.items() if of == case}
        first = next(iter(losses.values()))
        if not all(abs(loss - first) <= LOSS_TOLERANCE * abs(first) for loss in losses.values()):  # NaN is never near
            said = ", ".join(f"{who} {loss:.6f}" for who, loss in losses.items())
            raise FreewheelError(
                f"{case}: after {data.NUM_BATCHES} updates the losses are {said}. They do not make the same update, so nothing "
                "was measured."
            )


@contextmanager
def one_core() -> Iterator[None]:
    """This process and the children it starts meanwhile share one core: nobody's helper thread counts for nothing."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def empty_compile_cache() -> Iterator[None]:
    """What torch compiled before does not count: the time shown is that of a first run."""
    names = ("TORCHINDUCTOR_CACHE_DIR", "XDG_CACHE_HOME")
    with environment_kept(*names), tempfile.TemporaryDirectory(prefix="freewheel-compile-") as folder:
        os.environ |= dict.fromkeys(names, folder)
        yield


def _opened(call: Callable[[], Tensor], num_updates: int, seconds: float) -> Way:
    start = time.perf_counter()
    loss = call()
    first_s = time.perf_counter() - start
    for _ in range(data.NUM_BATCHES // num_updates - 1):
        loss = call()
    return Way(lambda: measure_us(call, seconds) / num_updates, loss.flatten()[-1].item(), first_s)
