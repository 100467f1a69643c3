"""The process of one role as the supervisor sees it: start, messages, signs of life, end."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections import deque
from multiprocessing.process import BaseProcess

from freewheel.errors import Trouble
from freewheel.machine.forkserver import launch, wait_for_end
from freewheel.machine.process import is_stopped
from freewheel.report.ledger import Snapshot
from freewheel.report.usage import ProcessUsage
from freewheel.run import entry
from freewheel.run.channel import Channel, Message, pair
from freewheel.run.plan import Plan

STACK_S = 0.2


class RoleProcess:
    """A role that may be started several times. `policy` is None for an actor, which plays all policies. `page` is the role's ledger
    page, if it has one.
    """

    def __init__(self, plan: Plan, kind: str, policy: int | None, index: int, page: int | None) -> None:
        self.plan, self.kind, self.policy, self.index, self.page = plan, kind, policy, index, page
        self.name = plan.role_name(kind, policy or 0, index)
        self.life = -1
        self.process: BaseProcess | None = None
        self.channel: Channel | None = None
        self.trouble: Trouble | None = None
        self.is_done = False  # it said so: an env may end the process with exit code 0 too
        self.started_s = 0.0
        self.lived_s = 0.0  # over all lives that have ended
        self.snapshot: Snapshot | None = None  # of its page, once it has ended
        self._cpu_before_s = self._cpu_now_s = self.memory_mb = 0.0
        self.usage: ProcessUsage | None = None
        self.deaths: deque[float] = deque()
        self.beats, self.beat_s, self.phases = -1, 0.0, dict[str, int]()
        self.is_reported = False  # as silent
        self._stack_fd: int | None = None

    @property
    def is_alive(self) -> bool:
        return self.process is not None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid or 0

    def start(self) -> None:
        ours, theirs = pair()
        started_s = time.monotonic()  # the start of the process is part of its life
        given = (self.kind, self.policy or 0, self.index, self.life + 1, self.plan, theirs)
        context = multiprocessing.get_context("forkserver")
        process = context.Process(target=entry.main, args=given, name=f"freewheel-{self.name}")
        try:
            with theirs:
                launch(process, *self.plan.given())
        except BaseException:
            ours.close()
            raise
        self.life += 1
        self.process, self.channel, self.trouble, self.is_done = process, Channel(ours), None, False
        self.started_s, self.beat_s = started_s, time.monotonic()
        self.snapshot = None
        self._cpu_before_s, self._cpu_now_s = self.cpu_s, 0.0
        self.usage = ProcessUsage(process.pid or 0)
        self.beats, self.is_reported, self._stack_fd = -1, False, None

    @property
    def cpu_s(self) -> float:
        """CPU seconds over all lives, at the last look."""
        return self._cpu_before_s + self._cpu_now_s

    def look_at_usage(self) -> None:
        if self.usage is not None and self.is_alive:
            self._cpu_now_s = self.usage.cpu_s() or self._cpu_now_s
            self.memory_mb = self.usage.memory_mb() or self.memory_mb

    def receive(self) -> list[Message]:
        if self.channel is None:
            return []
        found = self.channel.receive()
        for message in found:
            if "stack" in message:
                self._stack_fd = message["stack"]
            if "trouble" in message:
                self.trouble = Trouble(**message["trouble"])
            self.is_done |= "done" in message
        return found

    def clean_up(self) -> int:
        """After its end: removes the process and everything it started. Returns its exit code."""
        assert self.process is not None
        assert self.channel is not None
        wait_for_end(self.process)
        code = self.process.exitcode
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)  # processes that its env started
        self.channel.close()
        self.lived_s += time.monotonic() - self.started_s
        with contextlib.suppress(ValueError):  # it could not be killed
            self.process.close()
        self.process = self.channel = None
        return -signal.SIGKILL if code is None else code

    def kill(self) -> None:
        """Kills it and waits for its end: its successor must never write at the same time."""
        if self.process is None:
            return
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(OSError):
                kill(self.pid, signal.SIGKILL)
        wait_for_end(self.process)

    def shows_life(self, snapshot: Snapshot, now: float) -> bool:
        """Whether it has taken turns since the last look."""
        if snapshot.counters["beats"] == self.beats:
            return False
        self.beats, self.beat_s, self.phases = snapshot.counters["beats"], now, snapshot.phases_ns
        self.is_reported = False
        return True

    @property
    def is_stopped(self) -> bool:
        """By SIGSTOP or a debugger."""
        return is_stopped(self.pid)

    def stack(self) -> str:
        """Its Python stack, or the reason why there is none."""
        if self.process is None or self._stack_fd is None:
            return "(the process has not started)"
        if self.is_stopped:
            return "(the process is stopped by SIGSTOP)"
        try:
            with open(f"/proc/{self.pid}/fd/{self._stack_fd}", "rb") as file:
                file.seek(0, os.SEEK_END)
                os.kill(self.pid, signal.SIGUSR1)
                time.sleep(STACK_S)
                return file.read().decode(errors="replace").strip() or "(the process does not answer)"
        except OSError:
            return "(the process does not exist)"


def running_phase(before: dict[str, int], after: dict[str, int]) -> str:
    """The phase of a role that takes no turns: the one whose time grew most."""
    return max(after, key=lambda name: after[name] - before.get(name, 0), default="start")
