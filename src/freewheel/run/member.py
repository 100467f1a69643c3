"""One role as the supervisor sees it: its process, its channel, its signs of life."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections import deque
from multiprocessing.process import BaseProcess

from freewheel.machine.picklable import without_main
from freewheel.report.ledger import Snapshot
from freewheel.report.processes import ProcessUsage
from freewheel.run import entry
from freewheel.run.channel import Channel, Message, pair
from freewheel.run.entry import Trouble
from freewheel.run.plan import Plan

STACK_S = 0.2


class Member:
    """A role and its lives. `policy` is the one that it works for, None for an actor, who plays them all. `page` is its place in
    the ledger, None for one that keeps none.
    """

    def __init__(self, plan: Plan, kind: str, policy: int | None, index: int, page: int | None) -> None:
        self.plan, self.kind, self.policy, self.index, self.page = plan, kind, policy, index, page
        self.name = plan.role_name(kind, policy or 0, index)
        self.life = -1
        self.process: BaseProcess | None = None
        self.channel: Channel | None = None
        self.trouble: Trouble | None = None
        self.started_s = 0.0
        self.lived_s = 0.0  # in all lives that have ended
        self.snapshot: Snapshot | None = None  # of its page, after its end
        self._cpu_before_s = self._cpu_now_s = self.memory_mb = 0.0
        self._usage: ProcessUsage | None = None
        self.deaths: deque[float] = deque()
        self.beats, self.beat_s, self.phases = -1, 0.0, dict[str, int]()
        self.is_told = False  # that it shows no sign of life
        self._stack_fd: int | None = None

    @property
    def is_alive(self) -> bool:
        return self.process is not None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid or 0

    def start(self) -> None:
        self.life += 1
        ours, theirs = pair()
        context = multiprocessing.get_context("forkserver")
        name = f"freewheel-{self.name}"
        started_s = time.monotonic()  # asking for a process is part of its life
        given = (self.kind, self.policy or 0, self.index, self.life, self.plan, theirs)
        process = context.Process(target=entry.main, args=given, name=name)
        try:
            with without_main(*self.plan.given()), theirs:
                process.start()
        except BaseException:
            ours.close()
            self.life -= 1  # there was none
            raise
        self.process, self.channel, self.trouble = process, Channel(ours), None
        self.started_s, self.beat_s = started_s, time.monotonic()
        self.snapshot = None
        self._cpu_before_s, self._cpu_now_s = self.cpu_s, 0.0
        self._usage = ProcessUsage(process.pid or 0)
        self.beats, self.is_told, self._stack_fd = -1, False, None

    @property
    def cpu_s(self) -> float:
        """CPU seconds in all lives, up to the last look."""
        return self._cpu_before_s + self._cpu_now_s

    def look_at_usage(self) -> None:
        if self._usage is not None and self.is_alive:
            self._cpu_now_s = self._usage.cpu_s() or self._cpu_now_s
            self.memory_mb = self._usage.memory_mb() or self.memory_mb

    def receive(self) -> list[Message]:
        if self.channel is None:
            return []
        found = self.channel.receive()
        for message in found:
            if "stack" in message:
                self._stack_fd = message["stack"]
            if "trouble" in message:
                self.trouble = Trouble(**message["trouble"])
        return found

    def bury(self) -> int:
        """After its end: takes the process away with all that it started; the value is its exit code."""
        assert self.process is not None
        assert self.channel is not None
        self.process.join(5.0)
        code = self.process.exitcode
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)  # helpers of its env
        self.channel.close()
        self.lived_s += time.monotonic() - self.started_s
        self.process.close()
        self.process = self.channel = None
        return -signal.SIGKILL if code is None else code

    def kill(self) -> None:
        """Ends it and waits until it is gone: its successor must never write beside it."""
        if self.process is None:
            return
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)
        self.process.join(5.0)

    def shows_life(self, snapshot: Snapshot, now: float) -> bool:
        """Whether its count of turns has moved since the last look."""
        if snapshot.counters["beats"] == self.beats:
            return False
        self.beats, self.beat_s, self.phases = snapshot.counters["beats"], now, snapshot.phases_ns
        self.is_told = False
        return True

    @property
    def is_stopped(self) -> bool:
        """By SIGSTOP or a debugger: such a process does nothing at all, whatever its phase."""
        return self.process is not None and _is_stopped(self.pid)

    def stack(self) -> str:
        """Where it is, as its own Python sees it; a word instead when it cannot tell."""
        if self.process is None or self._stack_fd is None:
            return "(it has not begun)"
        if self.is_stopped:
            return "(the process is stopped: somebody sent it SIGSTOP)"
        try:
            with open(f"/proc/{self.pid}/fd/{self._stack_fd}", "rb") as file:
                file.seek(0, os.SEEK_END)
                os.kill(self.pid, signal.SIGUSR1)
                time.sleep(STACK_S)
                return file.read().decode(errors="replace").strip() or "(it does not answer)"
        except OSError:
            return "(it cannot be asked)"


def running_phase(before: dict[str, int], after: dict[str, int]) -> str:
    """What a role is doing that showed no sign of life in between: the phase that grew most."""
    return max(after, key=lambda name: after[name] - before.get(name, 0), default="start")


def _is_stopped(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in ("T", "t")
    except OSError:
        return False


def how_ended(code: int) -> str:
    if code < 0:
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"
    return f"exit code {code}"
