"""The shape of every trial: candidates, a measurement, a choice with its reason, and a cache per machine.

Each trial has a file in this folder: `world_kind`, `update_form`, `precision`, `worker_count` and `compile_decision`. What they
measure needs envs and learners, so callers pass the measurement in.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import math
import multiprocessing
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Generic, Literal, TypeVar

from freewheel.errors import ChildTrace, EnvError, FreewheelError, Trouble
from freewheel.machine import cache, process
from freewheel.machine.picklable import without_main
from freewheel.machine.process import Guard, how_it_ended, owner_id, start_forkserver

ROUNDS = 5
# The parent waits this much longer than the child, which shows its stack when its own deadline passes.
GRACE_S = 1.0
KILL_S = 5.0

C = TypeVar("C")
Work = Callable[..., None]


@dataclass(frozen=True)
class Choice(Generic[C]):
    """The candidate to use, and why, as a sentence for the user; empty if there was nothing to choose."""

    chosen: C
    reason: str = ""
    key: str = ""  # in the cache


@dataclass(frozen=True)
class Measured(Generic[C]):
    """Seconds of each candidate, round by round; `failure` says why the measurement ended early."""

    times: dict[C, list[float]]
    failure: str = ""
    is_remembered: bool = False

    @property
    def suffix(self) -> str:
        return " (measured earlier)" if self.is_remembered else ""


@dataclass(frozen=True)
class Report:
    """What a throwaway process reported before it ended; `failure` is empty if it finished, `trouble` what it raised."""

    told: list[Any]
    failure: str = ""
    exit_code: int | None = None
    trouble: Trouble | None = field(default=None, repr=False, compare=False)

    def error(self, who: str, when: str) -> FreewheelError:
        """The failure as an error of the env `who`: its own, or how its process ended."""
        if self.trouble is None:
            return EnvError(f"{who}: {self.failure} {when}.")
        error = self.trouble.error(who, EnvError)
        if self.trouble.trace:
            error.__cause__ = ChildTrace(f"in another process\n\n{self.trouble.trace}")
        return error


def interleaved(
    candidates: Sequence[C],
    seconds_of: Callable[[C], float],
    rounds: int = ROUNDS,
    least_rounds: int = ROUNDS,
    budget_s: float = math.inf,
    hopeless: float = math.inf,
) -> Iterator[tuple[C, float]]:
    """Measures the candidates round by round, so that a busy moment slows all of them.

    After `least_rounds`, candidates that take `hopeless` times as long as the best drop out, and no round begins after `budget_s`.
    """
    left, best, began_s = list(candidates), math.inf, time.perf_counter()
    for done in range(1, rounds + 1):
        times = {candidate: seconds_of(candidate) for candidate in left}
        yield from times.items()
        best = min(best, *times.values())
        if done >= least_rounds:
            left = [candidate for candidate in left if times[candidate] <= hopeless * best]
            if not left or time.perf_counter() - began_s > budget_s:
                return


def measure(calls: Mapping[C, Callable[[], object]], num_calls: int = 1) -> dict[C, list[float]]:
    """Seconds per call of each candidate in each round of `num_calls`. The first call allocates and does not count."""

    def seconds_of(candidate: C) -> float:
        call, began_s = calls[candidate], time.perf_counter()
        for _ in range(num_calls):
            call()
        return (time.perf_counter() - began_s) / num_calls

    for call in calls.values():
        call()
    times: dict[C, list[float]] = {candidate: [] for candidate in calls}
    for candidate, seconds in interleaved(list(calls), seconds_of):
        times[candidate].append(seconds)
    return times


def choose(
    times: Mapping[C, Sequence[float]], least_gain: float = 1.0, summary: Callable[[Sequence[float]], float] = min
) -> C:
    """The first candidate, unless another one is `least_gain` times as fast. Candidates without a time do not run here.

    By default the best round counts, as other programs only add time; the median suits candidates whose own time varies.
    """
    seconds = {candidate: summary(each) for candidate, each in times.items() if each}
    first = next(iter(times))
    best = min(seconds, key=lambda candidate: seconds[candidate], default=first)
    return first if first in seconds and seconds[first] < least_gain * seconds[best] else best


def recall(key: str, candidates: Sequence[C]) -> Measured[C] | None:
    """What this machine measured earlier; None if it did not, or if the cache holds something else."""
    found = cache.recall(key)
    times, failure = found.get("times"), found.get("failure")
    if not isinstance(times, list) or len(times) != len(candidates) or not isinstance(failure, str):
        return None
    if not all(isinstance(each, list) and all(isinstance(one, float) for one in each) for each in times):
        return None
    return Measured(dict(zip(candidates, times, strict=True)), failure, is_remembered=True)


def remember(key: str, measured: Measured[C]) -> None:
    cache.remember(key, {"times": list(measured.times.values()), "failure": measured.failure})


def throwaway(
    work: Work,
    *args: Any,
    timeout_s: float,
    start_timeout_s: float = 0.0,
    needs: Sequence[Any] = (),
    method: Literal["forkserver", "spawn"] = "forkserver",
    hear: Callable[[Any], None] | None = None,
) -> Report:
    """Runs `work(*args, tell)` in a process that may hang or die, and always returns.

    `tell(value)` reports a value as JSON, `tell()` only shows that the process is alive. A process that is silent for `timeout_s`
    (at first `start_timeout_s`, if that is longer; after `tell(limit_s=...)` that long) prints its stack and is killed with
    everything it started. `hear` gets each value when it arrives, instead of the report. `needs` are the arguments that the user's
    script may define. A process by `spawn` starts slower, with nothing loaded.
    """
    if method == "forkserver":
        start_forkserver()
    context: Any = multiprocessing.get_context(method)
    reader, writer = context.Pipe(duplex=False)
    limits_s = (max(start_timeout_s, timeout_s), timeout_s)
    child, guard = context.Process(target=_child, args=(work, args, limits_s, owner_id(), writer)), Guard()
    try:
        with reader, without_main(*needs), writer:
            child.start()
            writer.close()
            if method == "forkserver":  # what an env starts must not outlive this process either
                guard.start()
                guard.add(child.pid)
            return _listen(reader, child, limits_s[0], hear)
    finally:
        _end(child)
        guard.close()


def _listen(reader: Connection, child: BaseProcess, limit_s: float, hear: Callable[[Any], None] | None) -> Report:
    told: list[Any] = []
    hear = hear or told.append
    try:
        while reader.poll(limit_s + GRACE_S):
            message = json.loads(reader.recv_bytes())
            if "trouble" in message:
                trouble = Trouble(**message["trouble"]) if message["trouble"] else None
                return Report(told, f"{trouble.kind}: {trouble.text}" if trouble else "", trouble=trouble)
            if message["told"] is not None:
                hear(message["told"])
            limit_s = message["limit_s"]
    except EOFError:
        child.join(GRACE_S)
        return Report(told, f"its process {how_it_ended(child.exitcode)}", child.exitcode)
    return Report(told, f"no answer within {limit_s:g} s")


def _end(child: BaseProcess) -> None:
    if child.pid is not None:
        child.kill()  # it may not have its own process group yet
        with contextlib.suppress(ProcessLookupError):  # the group is empty
            os.killpg(child.pid, signal.SIGKILL)
        child.join(KILL_S)
    with contextlib.suppress(ValueError):  # it could not be killed
        child.close()


def _child(work: Work, args: Sequence[Any], limits_s: tuple[float, float], owner: str, writer: Connection) -> None:
    process.begin_role(owner)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # crashes are expected here

    def tell(value: Any = None, limit_s: float = limits_s[1]) -> None:
        # Shows the stack even while C code holds the interpreter.
        faulthandler.dump_traceback_later(limit_s)
        writer.send_bytes(json.dumps({"told": value, "limit_s": limit_s}).encode())

    faulthandler.dump_traceback_later(limits_s[0])
    trouble = None
    try:
        work(*args, tell)
    except Exception as error:  # the caller decides what it means
        trouble = vars(Trouble.of(error))
    faulthandler.cancel_dump_traceback_later()
    writer.send_bytes(json.dumps({"trouble": trouble}).encode())
