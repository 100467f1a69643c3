"""Envs in worker processes, joined by shared memory: recv gives the lanes that are ready and never waits for the slowest."""

from __future__ import annotations

import math
import os
import time
import weakref
from collections import deque
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from freewheel.errors import ChildTrace, ConfigError, EnvError
from freewheel.machine.process import how_it_ended, start_forkserver
from freewheel.spec import RowSpec
from freewheel.worlds.check import obs_leaves, raise_or_print
from freewheel.worlds.pool_member import Member, end_all, why_not_pooled
from freewheel.worlds.pool_table import Table, pull, push, split
from freewheel.worlds.pool_worker import Make, Task
from freewheel.worlds.seeds import lane_key
from freewheel.worlds.world import TIMEOUT_S, Array, Columns, Ended, Obs, OneGroup, Ready

LOOK_S = 0.25  # between two checks that all workers live
BUDGET_S = 600.0  # the window in which restarts are counted
# Making an env may take longer than a step: some start other programs.
START_S = 120.0


class PoolWorld(OneGroup):
    """One lane per env. The lanes are split among `workers` processes, each with neighbouring lanes. Several `threads` per worker
    suit envs that wait for something outside: while one waits, another goes on.

    recv waits for `min_ready` lanes (0: a quarter of all), and after `ready_wait_s` takes those that are ready. With `min_ready` equal
    to the number of lanes it waits for all, and gives the rows of an inline world. A worker that dies, or finishes no lane within
    `step_timeout_s`, is replaced; the episodes of its lanes are truncated at their newest observation.
    """

    may_rest = True

    def __init__(
        self,
        makes: Sequence[Make],
        seed: int,
        name: str,
        workers: int,
        *,
        first_lane: int = 0,
        threads: int = 1,
        min_ready: int = 0,
        ready_wait_s: float = 0.01,
        step_timeout_s: float = TIMEOUT_S,
        restarts: int = 3,
    ) -> None:
        if why := why_not_pooled(name, makes):
            raise ConfigError(why)
        env = makes[0]()  # only for its spaces
        super().__init__(name, env.observation_space, env.action_space, len(makes))
        env.close()
        self.num_workers = min(workers, self.num_lanes)
        self.num_threads = min(self.num_workers * threads, self.num_lanes)  # of all workers
        self.num_restarts = 0
        self.num_truncated = 0  # episodes that were cut with a worker
        self._notes: list[str] = []
        self._makes, self._seed, self._first_lane = list(makes), seed, first_lane
        self._min_ready = min(min_ready, self.num_lanes) or max(1, self.num_lanes // 4)
        self._ready_wait_s = ready_wait_s if self._min_ready < self.num_lanes else math.inf
        self._step_timeout_s, self._restarts = step_timeout_s, restarts
        self._look_s = min(LOOK_S, step_timeout_s / 4)
        self._deaths: deque[float] = deque()
        self._share_memory()
        self._begin_counts()
        self._start_all()

    def _start_all(self) -> None:
        start_forkserver("freewheel.worlds.pool_worker")
        self._members: list[Member] = []
        self._ends = weakref.finalize(self, end_all, self._members, self._table)
        try:
            for worker, own in enumerate(split(self.num_threads, self.num_workers)):
                self._members.append(self._start(worker, own))
        except BaseException:
            self._ends()
            raise
        self._look_due_s = time.monotonic() + self._look_s

    def _share_memory(self) -> None:
        obs_leaves(self.name, self.obs_space, self.action_space)  # refuses spaces that rows cannot hold
        fields = RowSpec.of(self.obs_space, self.action_space).fields
        self._table = Table(fields, split(self.num_lanes, self.num_threads))
        self._thread_of = np.repeat(np.arange(self.num_threads), [len(span) for span in self._table.spans])

    def _begin_counts(self) -> None:
        """The pool's own view of the lanes: all are about to begin, and recv has given none."""
        self._sent, self._seen = [0] * self.num_threads, [0] * self.num_threads  # positions in the rings
        self._open = [len(span) for span in self._table.spans]  # lanes that each thread still has to announce
        self._in_flight = np.ones(self.num_lanes, np.bool_)  # is with its worker: its action was sent, or it begins
        self._num_in_flight = self.num_lanes
        # Its worker has announced it, and recv has not given it yet. A lane whose worker was replaced may be announced before its action
        # is sent, and waits for it.
        self._announced = np.zeros(self.num_lanes, np.bool_)
        # The newest observation that recv gave of each lane: a worker may die while it writes the next one.
        self._last: Obs = {name: rows.copy() for name, rows in self._table.obs.items()}
        self._has_begun = np.zeros(self.num_lanes, np.bool_)
        # Its episode was cut with its worker, and recv has not said so yet.
        self._lost = np.zeros(self.num_lanes, np.bool_)

    def send(self, group: int, lanes: Array, actions: Columns) -> None:
        if self._in_flight[lanes].any():
            raise ValueError(f"{self.name}: send() names a lane among {lanes} that does not wait for an action.")
        for name, column in self._table.actions.items():
            column[lanes] = actions[name]
        self._in_flight[lanes] = True
        self._num_in_flight += len(lanes)
        if self._lost.any():
            lanes = lanes[~self._lost[lanes]]  # the episode of this action is gone; the lane begins a new one
        if len(lanes) > 1 and (lanes[1:] < lanes[:-1]).any():
            lanes = np.sort(lanes)
        owners = self._thread_of[lanes]
        cuts = [0, *(np.flatnonzero(owners[1:] != owners[:-1]) + 1).tolist(), len(lanes)]
        for begin, end in pairwise(cuts):
            if begin < end:
                self._send_to(int(owners[begin]), lanes[begin:end])

    def recv(self, timeout_s: float = TIMEOUT_S) -> tuple[Ready, ...]:
        """At least one lane. A worker that finishes none of its lanes in this time is replaced."""
        if not self._num_in_flight:
            raise ValueError(f"{self.name}: recv() has no lane to wait for. Send an action to a lane first.")
        lanes = self._wait(min(self._min_ready, self._num_in_flight), timeout_s)
        self._announced[lanes] = self._in_flight[lanes] = False
        self._num_in_flight -= len(lanes)
        return (self._give(lanes),)

    def close(self) -> None:
        if not self._ends.detach():
            return
        failure = end_all(self._members, self._table)
        del self._table  # frees the shared memory
        if failure is not None:
            raise_or_print(failure)

    def take_notes(self) -> list[str]:
        """Notes for the log about workers replaced since the last call."""
        notes, self._notes = self._notes, []
        return notes

    @property
    def pids(self) -> list[int]:
        return [member.pid for member in self._members]

    def _send_to(self, thread: int, lanes: Array) -> None:
        span = self._table.spans[thread]
        if len(span) > 1:  # a thread with one lane needs no ring
            push(self._table.inboxes[thread], self._sent[thread], lanes - span.start)
        self._sent[thread] += len(lanes)
        self._open[thread] += len(lanes)
        self._table.sent[thread].add(len(lanes))

    def _wait(self, need: int, timeout_s: float) -> Array:
        """The lanes that are ready, once these are `need`, or at least one after `ready_wait_s`."""
        now = time.monotonic()
        soon_s = now + self._ready_wait_s
        while True:
            if now >= self._look_due_s:  # before the rings: it may replace a worker, with the lanes that are ready
                self._look(now, timeout_s)
            # Read before the rings: an announcement after that moves the counter beyond this value, and ends the wait below.
            count = self._table.ready.value
            lanes = self._gather()
            if len(lanes) >= need or (len(lanes) and now >= soon_s):
                return lanes
            if self._table.failed.any():
                self._look(now, timeout_s)
            until_s = self._look_due_s if now >= soon_s else min(soon_s, self._look_due_s)
            self._table.ready.wait(count + (need - len(lanes) if now < soon_s else 1), max(until_s - now, 0.0))
            now = time.monotonic()

    def _gather(self) -> Array:
        """Takes announced lanes out of the rings. Gives the lanes that are ready."""
        found: list[int] = []  # from threads with one lane
        for thread, done in enumerate(self._table.done):
            until, seen = done.value, self._seen[thread]
            if until == seen:
                continue
            self._seen[thread] = until
            self._open[thread] -= until - seen
            span = self._table.spans[thread]
            if len(span) == 1:
                found.append(span.start)
            else:
                self._announced[pull(self._table.outboxes[thread], seen, until) + span.start] = True
        if found:
            self._announced[found] = True
        return (self._announced & self._in_flight).nonzero()[0]

    def _give(self, lanes: Array) -> Ready:
        table = self._table
        lost = self._take_lost(lanes)
        reward, first, ends = table.reward[lanes], table.first[lanes], table.ends[lanes]
        ended = None
        if ends.any():
            over = lanes[ends != 0]
            obs = {name: rows[over] for name, rows in table.final.items()}
            ended = Ended.of(over, obs, table.final_reward[over], ends[ends != 0])
        if lost is not None:
            ended = lost if ended is None else lost.joined(ended)
        if len(lanes) == self.num_lanes:
            for name, rows in table.obs.items():
                np.copyto(self._last[name], rows)
            return Ready(lanes, self._last, reward, first, ended)
        obs = {name: rows[lanes] for name, rows in table.obs.items()}
        for name, rows in obs.items():
            self._last[name][lanes] = rows
        return Ready(lanes, obs, reward, first, ended)

    def _take_lost(self, lanes: Array) -> Ended | None:
        """The episodes that were cut with their worker, ended at their newest observation."""
        if not self._has_begun.all():
            self._has_begun[lanes] = True
        over = lanes[self._lost[lanes]]
        if not len(over):
            return None
        self._lost[over] = False
        none, cut = np.zeros(len(over), np.bool_), np.ones(len(over), np.bool_)
        obs = {name: rows[over] for name, rows in self._last.items()}
        return Ended(over, obs, np.zeros(len(over), np.float32), none, cut)

    def _look(self, now: float, timeout_s: float) -> None:
        """Looks for workers that failed, died or hang. A failed one ends the pool; the others are replaced."""
        self._look_due_s = now + self._look_s
        limit_s = min(self._step_timeout_s, timeout_s)
        for member in list(self._members):
            if self._table.failed[member.threads.start : member.threads.stop].any():
                raise member.error() or EnvError(
                    f"{self.name}: {member} failed without a message. Its output above may say why."
                )
            if not member.is_alive:
                if (error := member.error()) is not None:
                    raise error
                self._replace(member, how_it_ended(member.process.exitcode), now)
                continue
            for thread in member.threads:
                if (why := self._hangs(member, thread, limit_s, now)) is not None:
                    self._replace(member, why, now)
                    break

    def _hangs(self, member: Member, thread: int, limit_s: float, now: float) -> str | None:
        span, beats = self._table.spans[thread], int(self._table.beats[thread])
        silent_s = member.silent_s(thread, self._seen[thread], beats, self._open[thread] > 0, now)
        if beats < len(span):
            limit_s = max(limit_s, START_S)
        if silent_s <= limit_s:
            return None
        waiting = ", ".join(str(self._first_lane + lane) for lane in span if self._in_flight[lane])
        return f"finished none of lanes {waiting} for {silent_s:.1f} s (the limit is {limit_s:g} s)"

    def _replace(self, old: Member, why: str, now: float) -> None:
        old.kill()
        old.release()
        while self._deaths and now - self._deaths[0] > BUDGET_S:
            self._deaths.popleft()
        self._deaths.append(now)
        if len(self._deaths) > self._restarts:
            error = EnvError(
                f"{self.name}: {old} {why}. That was death {len(self._deaths)} of a worker within {BUDGET_S / 60:.0f} minutes, "
                f"and at most {self._restarts} are replaced. Look at what the env does there; more memory, or fewer "
                "world.workers, may help."
            )
            raise error from ChildTrace(f"{old} {why}")
        self.num_restarts += 1
        span = slice(old.span.start, old.span.stop)
        self.num_truncated += int(self._has_begun[span].sum())
        self._lost[span] = self._has_begun[span]
        # Lanes that it announced and recv has not given are lost too: the new worker writes into the same memory.
        self._announced[span] = False
        for thread in old.threads:
            self._seen[thread], self._open[thread] = self._table.done[thread].value, len(self._table.spans[thread])
            self._table.beats[thread] = 0
        self._members[old.index] = self._start(old.index, old.threads)
        self._notes.append(
            f"{self.name}: {old} {why}; its episodes were cut and its lanes begin new ones (restart {len(self._deaths)} of {self._restarts})."
        )

    def _start(self, worker: int, threads: range) -> Member:
        spans = self._table.spans
        makes = self._makes[spans[threads[0]].start : spans[threads[-1]].stop]
        # Other seeds than before: an episode may be what killed the worker.
        seed = lane_key(self._seed, -self.num_restarts) if self.num_restarts else self._seed
        spaces = (self.obs_space, self.action_space)
        task = Task(worker, threads, makes, seed, self._first_lane, self.name, spaces, os.getpgrp())
        return Member(task, self._table)
