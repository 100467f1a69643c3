"""Freewheel's design in `benchmarks locks`: one owner of the optimiser, an actor that reads published weights, no lock.

More training workers compute gradients on their share of each batch; the owner adds them up and makes the one step.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from typing import Any

import torch

from benchmarks.locks.net import (
    ACT_ROWS,
    BATCH,
    SIZES,
    Adam,
    Net,
    Rows,
    first_weights,
    gradients_of,
    lengths,
    loss_of,
)
from benchmarks.locks.threads import DONE, LAG, TORN, WAIT, WORK
from freewheel.errors import FreewheelError
from freewheel.machine.temp_folder import use_own_folder
from freewheel.memory.counter import Counters
from freewheel.report.ledger import Ledger
from freewheel.weights.board import Board

READY, STOP = 0, 1
# A child imports torch first.
START_TIMEOUT_S = 120.0
# A gradient takes a millisecond; whoever waits so long waits for somebody who died.
WAIT_TIMEOUT_S = 20.0
MOST_FETCHES = 1000
# No measurement takes so long: a child that is forgotten ends by itself.
LIFE_S = 600.0


@dataclass
class Shared:
    """What the processes share: weights from the owner to all, gradients from each helper to the owner, counts."""

    weights: Board
    gradients: list[Board]
    counters: Counters
    ledger: Ledger

    @classmethod
    def make(cls, num_workers: int, ledger: Ledger) -> Shared:
        num_bytes = first_weights().nbytes
        return cls(Board(num_bytes), [Board(num_bytes) for _ in range(num_workers - 1)], Counters(2), ledger)

    def is_over(self) -> bool:
        return self.counters.value(STOP) > 0


@contextmanager
def running(num_workers: int, ledger: Ledger) -> Iterator[tuple[Shared, threading.Event]]:
    """Helpers are roles 1.., the actor the last one; the owner is the caller's. Ends with every child gone."""
    shared, stop = Shared.make(num_workers, ledger), threading.Event()
    shared.weights.publish(first_weights())
    use_own_folder()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # children then start in milliseconds, if nobody else began it before
    jobs: list[tuple[Any, int]] = [(help_owner, role) for role in range(1, num_workers)]
    children: list[ForkServerProcess] = []
    try:
        for job, role in [*jobs, (act, num_workers)]:
            child = context.Process(target=job, args=(shared, role, num_workers), daemon=True)
            child.start()
            children.append(child)
        if not shared.counters.wait(READY, len(children), START_TIMEOUT_S):
            codes = [child.exitcode for child in children]
            raise FreewheelError(
                f"{len(children)} processes of `benchmarks locks` did not start within {START_TIMEOUT_S:.0f} s (exit codes {codes})."
            )
        yield shared, stop
    finally:
        stop.set()
        shared.counters.add(STOP)
        shared.weights.publish(first_weights())  # wakes helpers, which then see that it is over
        for child in children:
            child.join(WAIT_TIMEOUT_S)
            if child.exitcode is None:
                child.kill()
                child.join()
            child.close()


def own(shared: Shared, stop: threading.Event) -> None:
    """The owner, role 0: its part of the gradient, the helpers' parts, one step, publish."""
    num_workers = len(shared.gradients) + 1
    page, rows = shared.ledger.page(0), Rows(seed=0)
    flat = first_weights()
    net, target, adam = Net(flat), Net(first_weights()), Adam(flat)
    total, part = torch.zeros_like(flat), torch.zeros_like(flat)
    seen = [0] * len(shared.gradients)  # helpers may have begun with the first version already
    page.start(WORK)
    while not stop.is_set():
        torch.cat(gradients_of(net, loss_of(net, target, rows.sample(BATCH // num_workers))), out=total)
        for i, board in enumerate(shared.gradients):
            page.enter(WAIT)
            if not board.wait(seen[i], WAIT_TIMEOUT_S):
                raise FreewheelError(
                    f"helper {i + 1} of `benchmarks locks` gave no gradient within {WAIT_TIMEOUT_S:.0f} s."
                )
            page.enter(WORK)
            seen[i] = fetch_newest(board, part)
            total.add_(part)
        adam.step(torch.split(total.div_(num_workers), lengths()))
        shared.weights.publish(flat)
        page.count(DONE, 1)


def help_owner(shared: Shared, role: int, num_workers: int) -> None:
    """A training worker beside the owner: the gradient of its share of each batch from every version of the weights."""
    _begin()
    page, rows = shared.ledger.page(role), Rows(seed=role)
    flat = first_weights()
    net, target = Net(flat), Net(first_weights())
    mine, seen = shared.gradients[role - 1], 0
    until = time.monotonic() + LIFE_S
    shared.counters.add(READY)
    page.start(WORK)
    while time.monotonic() < until:
        page.enter(WAIT)
        shared.weights.wait(seen, WAIT_TIMEOUT_S)
        page.enter(WORK)
        if shared.is_over():
            return
        seen = fetch_newest(shared.weights, flat)
        mine.publish(torch.cat(gradients_of(net, loss_of(net, target, rows.sample(BATCH // num_workers)))))


def act(shared: Shared, role: int, num_workers: int) -> None:
    """The actor: fetches weights when there are newer ones, and asks its own copy of the network for actions."""
    _begin()
    page = shared.ledger.page(role)
    flat = first_weights()
    net = Net(flat)
    obs = torch.randn(ACT_ROWS, SIZES[0], generator=torch.Generator().manual_seed(role))
    version = -1
    until = time.monotonic() + LIFE_S
    shared.counters.add(READY)
    page.start(WORK)
    while not shared.is_over() and time.monotonic() < until:
        if shared.weights.version != version:
            version = fetch_newest(shared.weights, flat)
        _, is_torn = net.act(obs)
        page.count(DONE, 1)
        page.count(TORN, int(is_torn))
        page.count(LAG, shared.weights.version - version)


def fetch_newest(board: Board, flat: torch.Tensor) -> int:
    """A fetch that the publisher lapped holds no version: it is made again."""
    for _ in range(MOST_FETCHES):
        version = board.fetch(flat)
        if version is not None:
            return version
    raise FreewheelError(f"{MOST_FETCHES} fetches in a row were lapped by the publisher of `benchmarks locks`.")


def _begin() -> None:
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """The forkserver outlives the bench process while it has children: they have to look after it themselves."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()  # a sleep in the kernel that ends when the parent does, however that happens
        os._exit(1)
