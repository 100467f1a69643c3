"""The ledger: no gap between phases, snapshots of one moment, across processes."""

from __future__ import annotations

import multiprocessing as mp
import threading
import time

import pytest

from freewheel.errors import ConfigError, ReplayError
from freewheel.report.ledger import Ledger


def test_phases_leave_no_gap() -> None:
    ledger = Ledger(1, ["env", "infer", "wait"], ["rows"], ["epsilon"])
    page = ledger.page(0)
    env, infer, wait = range(3)
    began = time.monotonic_ns()
    page.start(env)
    started = time.monotonic_ns()
    for _ in range(2000):
        page.enter(infer)
        page.enter(wait)
        page.enter(env)
        page.count(0, 3)
    page.set(0, 0.25)
    within = time.monotonic_ns() - started
    seen = ledger.snapshot(0)
    wall = time.monotonic_ns() - began
    assert seen.is_whole
    assert seen.counters == {"rows": 6000}
    assert seen.gauges == {"epsilon": 0.25}
    assert all(ns > 0 for ns in seen.phases_ns.values())
    assert within <= sum(seen.phases_ns.values()) <= wall


def test_the_running_phase_counts_up_to_now() -> None:
    ledger = Ledger(1, ["env", "wait"])
    page = ledger.page(0)
    page.start(ledger.phases.index("wait"))
    first = ledger.snapshot(0).phases_ns["wait"]
    time.sleep(0.02)
    assert ledger.snapshot(0).phases_ns["wait"] - first >= 20_000_000


def mark(ledger: Ledger, role: int) -> None:
    page = ledger.page(role)
    page.start(0)
    for i in range(200_000):
        page.enter(i % 2)
        page.count(0, 1)
        page.count(1, 1)


def test_snapshots_are_of_one_moment_while_others_write() -> None:
    """Two counters go up one after the other: no snapshot may see the second ahead of the first."""
    ledger = Ledger(2, ["a", "b"], ["first", "second"])
    child = mp.get_context("forkserver").Process(target=mark, args=(ledger, 1))
    child.start()
    seen = 0
    last = 0
    while seen < 200_000:
        snapshot = ledger.snapshot(1)
        assert snapshot.is_whole
        seen = snapshot.counters["first"]
        assert snapshot.counters["second"] <= seen <= snapshot.counters["second"] + 1
        assert sum(snapshot.phases_ns.values()) >= last
        last = sum(snapshot.phases_ns.values())
    child.join(30)
    assert ledger.snapshot(0).counters == {"first": 0, "second": 0}


def test_pages_do_not_disturb_each_other() -> None:
    ledger = Ledger(4, ["a"], ["n"])

    def write(role: int) -> None:
        page = ledger.page(role)
        for _ in range(20_000):
            page.count(0, role)

    threads = [threading.Thread(target=write, args=(role,)) for role in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [ledger.snapshot(role).counters["n"] for role in range(4)] == [0, 20_000, 40_000, 60_000]


def test_bad_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="unique names"):
        Ledger(1, ["a", "a"])
    page = Ledger(1, ["a"]).page(0)
    with pytest.raises(ReplayError, match="phase 3 does not exist"):
        page.enter(3)
    with pytest.raises(ConfigError, match="role 1 does not exist"):
        Ledger(1, ["a"]).page(1)
