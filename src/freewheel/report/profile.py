"""Where a role spends its time: a sampling profiler in a thread of the role, and a short torch trace of the learner."""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

# Often enough to resolve one percent within a minute, and too seldom to slow the run down measurably.
SAMPLE_EVERY_S = 0.005
MOST_DEPTH = 128
# Bounds the memory; further stacks are counted as one.
MOST_STACKS = 50_000
TOP_FUNCTIONS = 40

LEARNER = "learner"
# By then compilation is over, and memory and caches are warm.
TRACE_AFTER_S = 3.0
# A fast learner makes some hundred thousand events a second, which all stay in memory until the end.
TRACE_S = 0.2
JOIN_TIMEOUT_S = 30.0

Stack = tuple[CodeType, ...]  # outermost first


@contextlib.contextmanager
def profiled(role: str, folder: Path, is_on: bool) -> Iterator[None]:
    """Profiles the current thread; writes `folder/profile/<role>.txt` and `<role>.folded`.

    The learner gets `learner.trace.json.gz` too. An error here is reported and never ends the role.
    """
    if not is_on:
        yield
        return
    caller = sys._getframe(2)  # skips contextlib; its callers are the same in every stack
    profiler = Profiler(threading.get_ident(), caller)
    del caller
    works: list[Callable[[], None]] = [profiler.sample]
    with _reported(role):
        (folder / "profile").mkdir(parents=True, exist_ok=True)
        if role == LEARNER:
            works.append(partial(_trace, _prepared(), folder / "profile" / f"{role}.trace.json.gz", profiler.is_over))
    threads = [threading.Thread(target=_reported(role)(work), name="profile", daemon=True) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        profiler.is_over.set()
        for thread in threads:
            thread.join(JOIN_TIMEOUT_S)
        with _reported(role):
            profiler.write(folder / "profile", role)


@contextlib.contextmanager
def _reported(role: str) -> Iterator[None]:
    """Errors become a warning."""
    try:
        yield
    except Exception as error:
        print(f"warning: the profile of {role} is incomplete: {type(error).__name__}: {error}", file=sys.stderr)


class Profiler:
    """Counts the stacks of another thread until it `is_over`. A stack begins at `outermost`, if it contains it."""

    def __init__(self, watched: int, outermost: FrameType | None = None) -> None:
        self.counts: Counter[Stack] = Counter()
        self.seconds = 0.0
        self.is_over = threading.Event()
        self._watched, self._outermost = watched, outermost

    def sample(self) -> None:
        began_s = time.monotonic()
        while not self.is_over.wait(SAMPLE_EVERY_S):
            self.seconds = time.monotonic() - began_s
            self.look()
        self._outermost = None  # a frame keeps its variables alive

    def look(self) -> None:
        frame = sys._current_frames().get(self._watched)
        if frame is not None:
            stack = _stack(frame, self._outermost)
            self.counts[stack if stack in self.counts or len(self.counts) < MOST_STACKS else ()] += 1

    def write(self, folder: Path, role: str) -> None:
        (folder / f"{role}.txt").write_text(report(role, self.counts, self.seconds))
        (folder / f"{role}.folded").write_text(folded(self.counts))


def _trace(profile: Any, path: Path, is_over: threading.Event) -> None:
    """Writes a short Chrome trace of all threads of this process. A run that ended before it starts leaves none."""
    is_late = is_over.wait(TRACE_AFTER_S)
    profile.start_trace()  # in any case: a profile that is prepared and never started warns when it is deleted
    if not is_late:
        is_over.wait(TRACE_S)
    profile.stop_trace()
    if is_late:
        return
    plain = path.with_suffix("")
    profile.export_chrome_trace(str(plain))  # not into .gz: torch would copy it line by line in Python
    with open(plain, "rb") as source, gzip.open(path, "wb", compresslevel=1) as target:
        shutil.copyfileobj(source, target, 1 << 20)
    plain.unlink()


def _prepared() -> Any:
    """Torch needs this on the role's own thread. It takes about a second, before the role starts its work."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else it writes to standard error
    import torch.profiler
    from torch._C._profiler import _ExperimentalConfig

    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    everywhere = _ExperimentalConfig(profile_all_threads=True)
    profile = torch.profiler.profile(activities=activities, experimental_config=everywhere)
    profile.prepare_trace()
    return profile


def _stack(frame: FrameType, outermost: FrameType | None) -> Stack:
    codes: list[CodeType] = []
    at: FrameType | None = frame
    while at is not None and len(codes) < MOST_DEPTH:
        codes.append(at.f_code)
        at = None if at is outermost else at.f_back
    return tuple(reversed(codes))


def report(role: str, counts: Counter[Stack], seconds: float) -> str:
    """The functions that took most of the time, by themselves and with the functions they called."""
    total = sum(counts.values())
    alone: Counter[CodeType] = Counter()
    with_calls: Counter[CodeType] = Counter()
    for stack, count in counts.items():
        if stack:
            alone[stack[-1]] += count
        for code in set(stack):
            with_calls[code] += count
    lines = [f"{role}: {total:,} samples in {seconds:,.1f} s. Shares are of wall time: waiting counts."]
    titles = {
        "self: the function itself, including the C code it calls": alone,
        "total: the function and everything it calls": with_calls,
    }
    for title, found in titles.items():
        lines += ["", title]
        for code, count in found.most_common(TOP_FUNCTIONS):
            lines.append(f"{count / total:7.1%}  {_name(code)}")
    return "\n".join(lines) + "\n"


def folded(counts: Counter[Stack]) -> str:
    """The format of flame graph viewers: one line per stack, outermost function first, with its count."""
    lines = [f"{';'.join(map(_name, stack)) or 'others'} {count}" for stack, count in counts.most_common()]
    return "".join(f"{line}\n" for line in lines)


def _name(code: CodeType) -> str:
    """The function and its place: `step (learners/step.py:84)`, without the separators of the folded format."""
    where = "/".join(Path(code.co_filename).parts[-2:])
    name = getattr(code, "co_qualname", code.co_name)  # with its class from Python 3.11 on
    return f"{name} ({where}:{code.co_firstlineno})".replace(";", ":").replace("\n", " ")
