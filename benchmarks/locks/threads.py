"""Three designs in which threads train and act on one network in one process, each with another lock around it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from benchmarks.locks.net import ACT_ROWS, SIZES, Adam, Net, Rows, first_weights, gradients_of, loss_of
from freewheel.errors import FreewheelError
from freewheel.report.ledger import Ledger, Page

PHASES, COUNTERS = ("work", "wait"), ("done", "torn", "stale", "lag")
WORK, WAIT = 0, 1
DONE, TORN, STALE, LAG = range(4)
# Nobody holds one of these locks for longer than some updates; whoever waits so long waits for a lock that is lost.
LOCK_TIMEOUT_S = 30.0


class Lock:
    """A mutual lock whose waits are marked in the page of whoever waits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    @contextmanager
    def held(self, page: Page) -> Iterator[None]:
        page.enter(WAIT)
        if not self._lock.acquire(timeout=LOCK_TIMEOUT_S):
            raise _lost("the lock")
        page.enter(WORK)
        try:
            yield
        finally:
            self._lock.release()


class ReadWriteLock:
    """Readers together or one writer alone.

    A waiting writer goes before readers that come later, so readers cannot starve it; whoever leaves wakes all
    who wait, and each looks again under the same mutex that the state changes under, so no wake-up is lost.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._readers = self._writers_waiting = 0
        self._is_writing = False

    @contextmanager
    def reading(self, page: Page) -> Iterator[None]:
        page.enter(WAIT)
        with self._changed:
            self._wait_until(lambda: not self._is_writing and not self._writers_waiting)
            self._readers += 1
        page.enter(WORK)
        try:
            yield
        finally:
            with self._changed:
                self._readers -= 1
                self._changed.notify_all()

    @contextmanager
    def writing(self, page: Page) -> Iterator[None]:
        page.enter(WAIT)
        with self._changed:
            self._writers_waiting += 1
            try:
                self._wait_until(lambda: not self._is_writing and not self._readers)
                self._is_writing = True
            finally:
                self._writers_waiting -= 1
        page.enter(WORK)
        try:
            yield
        finally:
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()

    def _wait_until(self, is_free: Callable[[], bool]) -> None:
        if not self._changed.wait_for(is_free, LOCK_TIMEOUT_S):
            raise _lost("the reader/writer lock")


class Shared:
    """What the threads of one design share."""

    def __init__(self) -> None:
        self.flat = first_weights()
        self.adam = Adam(self.flat)
        self.target = Net(first_weights())
        self.lock, self.rw_lock = Lock(), ReadWriteLock()
        self.stop = threading.Event()

    def step(self, page: Page, gradients: tuple[torch.Tensor, ...], seen: int, net: Net) -> None:
        """Under the design's lock: `seen` is the version that the gradients were computed from."""
        if net.version() != seen:
            page.count(STALE, 1)
        self.adam.step(gradients)


def one_lock(shared: Shared, page: Page, net: Net, rows: Rows) -> None:
    """Everything in one lock."""
    with shared.lock.held(page):
        seen = net.version()
        loss = loss_of(net, shared.target, rows.sample())
        shared.step(page, gradients_of(net, loss), seen, net)


def small_lock(shared: Shared, page: Page, net: Net, rows: Rows) -> None:
    """Only backward and step in the lock; others step between this worker's forward and its backward."""
    batch = rows.sample()
    seen = net.version()
    loss = loss_of(net, shared.target, batch)
    with shared.lock.held(page):
        shared.step(page, gradients_of(net, loss), seen, net)


def rw_lock(shared: Shared, page: Page, net: Net, rows: Rows) -> None:
    """Forward and backward as a reader, the step as the writer; others step between the two."""
    batch = rows.sample()
    with shared.rw_lock.reading(page):
        seen = net.version()
        gradients = gradients_of(net, loss_of(net, shared.target, batch))
    with shared.rw_lock.writing(page):
        shared.step(page, gradients, seen, net)


Update = Callable[[Shared, Page, Net, Rows], None]
DESIGNS: dict[str, Update] = {"one_lock": one_lock, "small_lock": small_lock, "rw_lock": rw_lock}


def train(design: str, shared: Shared, ledger: Ledger, role: int) -> None:
    """One training worker, until it is told to stop."""
    page, net, rows = ledger.page(role), Net(shared.flat), Rows(seed=role)
    update = DESIGNS[design]
    page.start(WORK)
    while not shared.stop.is_set():
        update(shared, page, net, rows)
        page.count(DONE, 1)


def act(design: str, shared: Shared, ledger: Ledger, role: int) -> None:
    """The reader: asks the network for actions again and again."""
    page, net = ledger.page(role), Net(shared.flat)
    obs = torch.randn(ACT_ROWS, SIZES[0], generator=torch.Generator().manual_seed(role))
    page.start(WORK)
    while not shared.stop.is_set():
        if design == "one_lock":
            with shared.lock.held(page):
                _, is_torn = net.act(obs)
        elif design == "rw_lock":
            with shared.rw_lock.reading(page):
                _, is_torn = net.act(obs)
        else:
            _, is_torn = net.act(obs)
        page.count(DONE, 1)
        page.count(TORN, int(is_torn))


def _lost(name: str) -> FreewheelError:
    return FreewheelError(
        f"a thread of `benchmarks locks` waited {LOCK_TIMEOUT_S:.0f} s for {name}, which nobody gave back. Report this with the output above."
    )
