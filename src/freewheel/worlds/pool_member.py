"""A worker as the pool sees it: started from a forkserver, watched, and ended with all processes that its envs started."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from freewheel.errors import ChildTrace, EnvError, FreewheelError, Trouble
from freewheel.machine.picklable import why_not_picklable, without_main
from freewheel.worlds import pool_worker
from freewheel.worlds.pool_table import Table
from freewheel.worlds.pool_worker import Make, Task

CLOSE_S = 5.0


class Member:
    """One worker and its process."""

    def __init__(self, task: Task, table: Table) -> None:
        self.index, self.threads, self._first_lane = task.index, task.threads, task.first_lane
        self.span = range(table.spans[task.threads[0]].start, table.spans[task.threads[-1]].stop)
        ours, theirs = multiprocessing.Pipe(duplex=False)
        context = multiprocessing.get_context("forkserver")
        name = f"freewheel-env-{task.index}"
        self.process: BaseProcess = context.Process(target=pool_worker.main, args=(task, table, theirs), name=name)
        try:
            with without_main(*task.makes), theirs:
                self.process.start()
        except BaseException:
            ours.close()
            raise
        self.pid: int = self.process.pid or 0
        self._end: Connection = ours
        self._signs = dict.fromkeys(task.threads, (-1, -1))
        self._moved_s = dict.fromkeys(task.threads, time.monotonic())

    def __str__(self) -> str:
        first, last = self._first_lane + self.span[0], self._first_lane + self.span[-1]
        lanes = f"lane {first}" if first == last else f"lanes {first}-{last}"
        return f"worker {self.index} (pid {self.pid}, {lanes})"

    @property
    def is_alive(self) -> bool:
        return self.process.exitcode is None

    def silent_s(self, thread: int, done: int, beats: int, has_work: bool, now: float) -> float:
        """How long one of its threads has had work and shown no progress."""
        if not has_work or (done, beats) != self._signs[thread]:
            self._signs[thread], self._moved_s[thread] = (done, beats), now
        return now - self._moved_s[thread]

    def error(self, *, in_close: bool = False) -> FreewheelError | None:
        """The error that it sent when it failed; with `in_close` only an error of closing its envs."""
        try:
            if not self._end.poll(0):
                return None
            told, was_in_close = json.loads(self._end.recv_bytes())
        except (EOFError, OSError):
            return None
        if in_close and not was_in_close:
            return None
        trouble = Trouble(**told)
        error = trouble.error(str(self), EnvError)
        if trouble.trace:
            error.__cause__ = ChildTrace(f"in {self}\n\n{trouble.trace}")
        return error

    def kill(self) -> None:
        """Kills it and the processes that its envs started, and waits until it is gone."""
        for pid in (self.pid, *_children(self.pid)):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self.process.join(5.0)

    def release(self) -> None:
        """After its end: closes its pipe and process handle."""
        self._end.close()
        with contextlib.suppress(ValueError):  # it could not be killed
            self.process.close()


def why_not_pooled(name: str, makes: Sequence[Make]) -> str:
    """Why another process cannot make these envs, and what to do; "" if it can.

    A fork of this process could make any env, but it also copies locks that other threads hold, and could wait for one forever.
    """
    for why in filter(None, map(why_not_picklable, dict.fromkeys(makes))):
        cure = "Define it in a module and give it by name, as module:function; or set world.kind to inline."
        return f"{name} cannot be sent to the workers of a pool: {why}. {cure}"
    return ""


def _children(pid: int) -> list[int]:
    """All descendants of a process."""
    found = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(word) for word in (task / "children").read_text().split()]
    return found + [below for child in found for below in _children(child)]


def end_all(members: list[Member], table: Table) -> FreewheelError | None:
    """Lets every worker close its envs, and kills those that do not. Gives the first error of a close()."""
    table.closing[0] = True
    for sent in table.sent:
        sent.add(1)
    until_s = time.monotonic() + CLOSE_S
    failure: FreewheelError | None = None
    for member in members:
        with contextlib.suppress(ValueError):  # it was released when the restarts were used up
            member.process.join(max(until_s - time.monotonic(), 0.0))
            if member.is_alive:
                member.kill()
            elif (error := member.error(in_close=True)) is not None:
                failure = failure or error
            member.release()
    members.clear()
    return failure
