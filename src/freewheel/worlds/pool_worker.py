"""A worker of the pool: steps the lanes that the pool sends, and announces them as soon as it pays to wake the pool."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import gymnasium

from freewheel.errors import EnvError, Trouble
from freewheel.machine import process
from freewheel.machine.global_seeds import seed_globals, seed_torch
from freewheel.spec import Space
from freewheel.worlds.check import close_all
from freewheel.worlds.inline import InlineWorld
from freewheel.worlds.pool_table import ALARM, Table, pull, push
from freewheel.worlds.seeds import episode_seed, lane_key
from freewheel.worlds.world import Array, Ready

Make = Callable[[], gymnasium.Env[Any, Any]]

# Lanes are stepped together for about this long before they are announced. Waking the pool costs 10 to 50 us.
HOLD_S = 0.0005
SLOW_RESET_S = HOLD_S / 4
IDLE_S = 3600.0
PROCESS = -1  # in place of an episode's number: the seed of what all lanes of a worker draw from

_telling = threading.Lock()


@dataclass(frozen=True)
class Task:
    """What a worker needs to make and step its lanes."""

    index: int
    threads: range
    makes: Sequence[Make]  # one per lane of its threads
    seed: int
    first_lane: int  # number of the pool's first lane in the run
    name: str
    spaces: tuple[Space, Space]  # of observations and actions
    owner: str  # mark of the pool's process, and its process group
    group: int


def main(task: Task, table: Table, end: Connection) -> None:
    """A worker's process from its first instruction to its last; never returns."""
    process.begin(task.owner, task.group)
    first = task.first_lane + table.spans[task.threads[0]].start
    seed_globals(episode_seed(lane_key(task.seed, first), PROCESS))
    workers = [Stepper(task, table, thread) for thread in task.threads]
    if len(workers) == 1:
        _run(workers[0], end)  # some envs work in the main thread only
    else:
        threads = [threading.Thread(target=_run, args=(worker, end)) for worker in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    process.leave(any(worker.has_failed for worker in workers))


def _run(stepper: Stepper, end: Connection) -> None:
    """Steps until the pool closes; sends the pool any error."""
    try:
        stepper.run()
    except BaseException as error:
        stepper.has_failed = True
        told = json.dumps([vars(Trouble.of(error)), stepper.is_closing])
        with contextlib.suppress(OSError), _telling:
            end.send_bytes(told.encode())
        stepper.alarm()


class Stepper:
    """The lanes of one thread as an inline world whose rows lie in the table."""

    def __init__(self, task: Task, table: Table, thread: int) -> None:
        self._task, self._table, self._thread = task, table, thread
        self._span = table.spans[thread]
        self._lanes = range(self._span.start + task.first_lane, self._span.stop + task.first_lane)
        at = self._span.start - table.spans[task.threads[0]].start
        self._makes = task.makes[at : at + len(self._span)]
        self._inbox, self._outbox = table.inboxes[thread], table.outboxes[thread]
        self._go, self._is_done, self._ready = table.sent[thread], table.done[thread], table.ready
        # Where an earlier worker stopped. The pool sends no lane before this thread has announced it.
        self._sent, self._done = self._go.value, self._is_done.value
        own = slice(self._span.start, self._span.stop)
        self._actions, self._ends = {name: column[own] for name, column in table.actions.items()}, table.ends[own]
        self._ends[:] = 0
        self._final = {name: rows[own] for name, rows in table.final.items()}
        self._final_reward = table.final_reward[own]
        self._rows = ({name: rows[own] for name, rows in table.obs.items()}, table.reward[own], table.first[own])
        self._step_s = HOLD_S
        self.has_failed = False
        self.is_closing = False  # all steps are done: an error from here on comes from close()

    def alarm(self) -> None:
        self._table.failed[self._thread] = True
        self._ready.add(ALARM)

    def run(self) -> None:
        envs: list[gymnasium.Env[Any, Any]] = []
        try:
            for make in self._makes:
                envs.append(make())
                self._check(envs[-1])
                self._table.beats[self._thread] += 1  # shows that it is alive: many envs take long to make
            seed_torch()  # an env may have loaded it
            task = self._task
            world = InlineWorld(envs, task.seed, task.name, lanes=self._lanes, rows=self._rows, resets_at_once=1)
            self._serve(world)
            self.is_closing = True
        finally:
            close_all(self._task.name, envs, self._lanes.start)

    def _serve(self, world: InlineWorld) -> None:
        self._begin_episodes(world)
        go, closing, is_single = self._go, self._table.closing, len(self._span) == 1
        while not closing[0]:
            go.wait(self._sent + 1, IDLE_S)
            until = go.value
            if until == self._sent or closing[0]:
                continue
            if is_single:
                self._sent = until
                self._step_one(world)
                continue
            lanes = pull(self._inbox, self._sent, until)
            self._sent = until
            self._step(world, lanes)

    def _step_one(self, world: InlineWorld) -> None:
        """The only lane of this thread, which needs no ring."""
        ready = world.step_only(self._actions)
        if ready.ended is not None:
            self._announce(ready)
            self._begin_episodes(world)
            return
        self._ends[0] = 0
        self._done += 1
        self._is_done.add(1)
        self._ready.add(1)

    def _begin_episodes(self, world: InlineWorld) -> None:
        while world.num_fresh and not self._table.closing[0]:
            self._announce(*world.recv())
        # Slow resets go one by one, after the lanes that were stepped with them are announced.
        world.resets_at_once = 1 if world.reset_s > SLOW_RESET_S else None

    def _step(self, world: InlineWorld, lanes: Array) -> None:
        """As many lanes at a time as HOLD_S allows: one of a slow env, all of a fast one."""
        clock, at = time.perf_counter, 0
        while at < len(lanes) and not self._table.closing[0]:
            part = lanes[at : at + max(1, int(HOLD_S / self._step_s))]
            at += len(part)
            began = clock()
            world.send(0, part, {name: column[part] for name, column in self._actions.items()})
            (ready,) = world.recv()
            took_s = (clock() - began) / len(part)
            self._step_s += 0.1 * (took_s - self._step_s)
            self._announce(ready)
            self._begin_episodes(world)

    def _announce(self, ready: Ready) -> None:
        lanes, ended = ready.lanes, ready.ended
        self._ends[lanes] *= ready.first  # an end that was written before the reset stays
        if ended is not None:
            for name, rows in ended.obs.items():
                self._final[name][ended.lanes] = rows
            self._final_reward[ended.lanes] = ended.reward
            self._ends[ended.lanes] = ended.ends
        push(self._outbox, self._done, lanes)
        self._done += len(lanes)
        self._is_done.add(len(lanes))
        self._ready.add(len(lanes))

    def _check(self, env: gymnasium.Env[Any, Any]) -> None:
        mine, theirs = (env.observation_space, env.action_space), self._task.spaces
        if mine != theirs:
            raise EnvError(
                f"{self._task.name} has the spaces {mine} in a worker, and {theirs} in the pool. Make every copy with the same spaces."
            )
