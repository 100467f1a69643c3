"""`freewheel bench update`: one whole DQN update, ours eager and compiled, against plain torch and JAX, on one core."""

from __future__ import annotations

import itertools
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from freewheel.algos.make import make_algo
from freewheel.bench.child import Child, PeerFailed
from freewheel.bench.harness import (
    OURS,
    Bar,
    Case,
    Measure,
    describe_machine,
    interleave,
    progress,
    report,
    warn_if_busy,
)
from freewheel.bench.installed import HOW_TO_GET, check_names, find_python
from freewheel.bench.peers import update_data as data
from freewheel.bench.peers import update_plain
from freewheel.bench.peers.window import measure_us
from freewheel.bench.settings import UpdateSettings, check_rounds
from freewheel.config import LearnerConfig, NetConfig, QConfig
from freewheel.errors import ConfigError, FreewheelError
from freewheel.learners.step import MOST_UNROLLED, Step
from freewheel.nets.build import build_net

EAGER, COMPILED = "eager", "compiled"
PLAIN, JAX = update_plain.WAYS, ("jax_jit", "jax_scan32")
BASELINE = PLAIN[0]

GOALS = {"update/compiled/128": 4.0, "update/compiled_vs_jax/128": 1.0, "update/compiled_vs_jax/512": 1.0}

# After the first 32 updates every way has the same loss but for the order of its additions.
LOSS_TOLERANCE = 1e-3
# XLA compiles within seconds; the deadline is for a busy machine.
OPEN_TIMEOUT_S = 120.0
MEASURE_TIMEOUT_S = 60.0


@dataclass
class Way:
    """Who makes updates: how to measure one, what its loss was after the first 32, and how long its first call took."""

    measure: Measure  # microseconds per update
    loss: float
    first_s: float


Ways = dict[tuple[str, str], Way]  # by "update/ROWS" and name; a form of ours is called "ours eager"


def run(settings: UpdateSettings) -> list[Case]:
    """Measure, print, and give the cases."""
    check_rounds(settings.rounds, settings.seconds)
    if not settings.batches or min(settings.batches) < 1:
        raise ConfigError(f"--batches {','.join(map(str, settings.batches))} must be one or more positive numbers.")
    forms = check_names(settings.ours, (EAGER, COMPILED), "form of ours")
    if not forms:
        raise ConfigError(f"--ours none leaves nothing to measure. Choose from {EAGER}, {COMPILED}.")
    against = list(PLAIN + JAX) if settings.against is None else check_names(settings.against, PLAIN + JAX, "way")
    python = python_for([way for way in against if way in JAX], is_asked=settings.against is not None)
    torch.set_num_threads(1)
    machine = describe_machine({})
    warn_if_busy(machine)
    windows = len(settings.batches) * (len(forms) + len(against)) * settings.rounds
    with ExitStack() as closing, progress("bench update", windows) as bar:
        ways: Ways = {}
        with empty_compile_cache():
            for rows in settings.batches:
                ways |= open_here(forms, against, rows, settings.seconds, bar)
        closing.enter_context(one_core())
        if python is not None:
            try:
                child = closing.enter_context(Child("jax", python, "update_worker"))
                for rows in settings.batches:
                    ways |= open_jax(child, against, rows, settings.seconds, bar)
                machine["versions"]["jax"] = child.greeting["version"]
            except PeerFailed as error:
                print(f"{error}\njax is left out. 'make peers' installs it.", file=sys.stderr)
                ways = {(case, who): way for (case, who), way in ways.items() if who not in JAX}
        check_same(ways)
        figures = interleave({key: way.measure for key, way in ways.items()}, settings.rounds, bar)
    cases = [case for rows in settings.batches for case in make_cases(rows, forms, ways, figures)]
    report("update", machine, cases, as_json=settings.json)
    return cases


def python_for(jax_ways: Sequence[str], *, is_asked: bool) -> Path | None:
    """The interpreter that has JAX; None when there is none and nobody asked for it by name."""
    if not jax_ways:
        return None
    python = find_python()
    if python is None:
        if is_asked:
            raise ConfigError(f"{', '.join(jax_ways)}: {HOW_TO_GET}")
        print(HOW_TO_GET, file=sys.stderr)
    return python


def make_cases(
    rows: int, forms: Sequence[str], ways: Ways, figures: Mapping[tuple[str, str], list[float]]
) -> list[Case]:
    """Each form of ours against plain torch, and once more against JAX."""
    measured = {who: figures[case, who] for case, who in ways if case == f"update/{rows}"}
    first_s = {who: round(way.first_s, 2) for (case, who), way in ways.items() if case == f"update/{rows}"}
    baselines = {who: measured[who] for who in PLAIN if who in measured}
    peers = {who: measured[who] for who in JAX if who in measured}
    cases = []
    for form in forms:
        who, name = f"{OURS} {form}", f"update/{form}/{rows}"
        case = Case(name, "us", measured[who], baselines=baselines, goal=GOALS.get(name))
        case.baseline = BASELINE if BASELINE in baselines else None
        case.extra = {"first_call_s": first_s, "updates_per_call": 1}
        cases.append(case)
        if form == COMPILED:
            case.extra |= {"updates_per_call": MOST_UNROLLED, "compile_s": first_s[who]}
            case.extra["notes"] = [f"{name}: compiling took {first_s[who]:.0f} s, with nothing compiled before."]
        if peers:
            name = f"update/{form}_vs_jax/{rows}"
            cases.append(Case(name, "us", measured[who], peers=peers, goal=GOALS.get(name)))
    return cases


def open_here(forms: Sequence[str], against: Sequence[str], rows: int, seconds: float, bar: Bar) -> Ways:
    """The ways that run in this process, each compiled if it is to be, and brought to update 32."""
    opened: Ways = {}
    for form in forms:
        bar.show(f"{OURS} {form}, batch {rows}: first updates")
        opened[f"update/{rows}", f"{OURS} {form}"] = _opened(*our_call(form == COMPILED, rows), seconds)
    for way in against:
        if way in PLAIN:
            bar.show(f"{way}, batch {rows}: first updates")
            opened[f"update/{rows}", way] = _opened(update_plain.make_call(way, rows), 1, seconds)
    return opened


def our_call(is_compiled: bool, rows: int) -> tuple[Callable[[], Tensor], int]:
    """Our update as the learner makes it, and how many of them one call makes."""
    q = QConfig(double=False, gamma=data.GAMMA, huber=data.HUBER)
    box = spaces.Box(-math.inf, math.inf, (data.SIZES[0],), np.float32)
    net = build_net(box, spaces.Discrete(data.SIZES[-1]), NetConfig(hidden=data.SIZES[1:-1]), q, "dqn")
    update_plain.set_weights(net)
    config = LearnerConfig(
        batch_size=rows,
        lr=data.LR,
        clip_norm=data.CLIP_NORM,
        beta1=data.BETA1,
        beta2=data.BETA2,
        adam_eps=data.ADAM_EPS,
        target_every_updates=data.TARGET_EVERY,
    )
    step = Step(net, make_algo("dqn", q, net), config, unrolled=MOST_UNROLLED if is_compiled else 1)
    tensors = {name: torch.from_numpy(values) for name, values in data.batches(rows).items()}
    # The learner always has importance weights; plain DQN does without.
    tensors["weight"] = torch.ones(data.NUM_BATCHES, rows)
    size = step.unrolled
    places = [slice(i, i + size) if size > 1 else i for i in range(0, data.NUM_BATCHES, size)]
    take = itertools.cycle([{name: values[place] for name, values in tensors.items()} for place in places])

    def call() -> Tensor:
        batch = next(take)
        if is_compiled and not step.is_compiled:
            step.compile(batch, {})
        return step.update(batch, {}, data.LR).loss

    return call, size


def open_jax(child: Child, against: Sequence[str], rows: int, seconds: float, bar: Bar) -> Ways:
    opened: Ways = {}
    for way in against:
        if way in JAX:
            bar.show(f"{way}, batch {rows}: first updates")
            answer = child.ask({"op": "open", "way": way, "rows": rows}, OPEN_TIMEOUT_S)
            measure = _by_child(child, way, rows, seconds)
            opened[f"update/{rows}", way] = Way(measure, float(answer["loss"]), float(answer["first_s"]))
    return opened


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
    before = {name: os.environ.get(name) for name in names}
    with tempfile.TemporaryDirectory(prefix="freewheel-compile-") as folder:
        os.environ |= dict.fromkeys(names, folder)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def _opened(call: Callable[[], Tensor], num_updates: int, seconds: float) -> Way:
    start = time.perf_counter()
    loss = call()
    first_s = time.perf_counter() - start
    for _ in range(data.NUM_BATCHES // num_updates - 1):
        loss = call()
    return Way(lambda: measure_us(call, seconds) / num_updates, loss.flatten()[-1].item(), first_s)


def _by_child(child: Child, way: str, rows: int, seconds: float) -> Measure:
    order = {"op": "measure", "way": way, "rows": rows, "seconds": seconds}
    return lambda: float(child.ask(order, MEASURE_TIMEOUT_S + 3 * seconds)["us"])
