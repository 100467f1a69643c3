"""Waits: nobody polls, every wait ends, Ctrl-C ends it too."""

from __future__ import annotations

import multiprocessing as mp
import os
import resource
import signal
import threading
import time
from multiprocessing.connection import Connection

import pytest

from freewheel.errors import ConfigError, ReplayError
from freewheel.memory.counter import Counters


def wait_for(counters: Counters, target: int, connection: Connection) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF)
    connection.send("waiting")
    reached = counters.wait(0, target, 30)
    after = resource.getrusage(resource.RUSAGE_SELF)
    connection.send((reached, counters.value(0), after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))


@pytest.mark.parametrize("start", [0, 2**32 - 3, 2**64 - 3])
def test_f20_a_process_sleeps_until_the_count_is_reached(start: int) -> None:
    counters = Counters(2, start=start)
    ours, theirs = mp.Pipe()
    child = mp.get_context("forkserver").Process(target=wait_for, args=(counters, start + 5, theirs))
    child.start()
    assert ours.poll(60)
    assert ours.recv() == "waiting"
    for _ in range(4):
        counters.add(0)
        assert not ours.poll(0.1)
    counters.add(0)
    assert ours.poll(10)
    reached, value, cpu_s = ours.recv()
    assert reached
    assert value == (start + 5) % 2**64
    assert cpu_s < 0.1, "a sleeper must not burn its core"
    child.join(10)
    ours.close()
    theirs.close()


def test_a_wait_ends_at_its_deadline() -> None:
    counters = Counters(1)
    began = time.monotonic()
    assert not counters.wait(0, 1, 0.2)
    assert time.monotonic() - began >= 0.2
    assert counters.wait(0, 0, 0)


def test_ctrl_c_ends_a_wait() -> None:
    counters = Counters(1)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            counters.wait(0, 1, 60)
    finally:
        timer.join()
        signal.signal(signal.SIGINT, before)


def test_all_who_wait_are_woken() -> None:
    counters = Counters(1)
    results: list[tuple[int, bool]] = []
    threads = [
        threading.Thread(target=lambda t=target: results.append((t, counters.wait(0, t, 30))))
        for target in (1, 2, 3, 3, 50)
    ]
    for thread in threads:
        thread.start()
    for _ in range(50):
        counters.add(0)
    for thread in threads:
        thread.join(30)
    assert sorted(results) == [(1, True), (2, True), (3, True), (3, True), (50, True)]


def test_bad_calls_are_refused() -> None:
    with pytest.raises(ConfigError, match="num=0"):
        Counters(0)
    with pytest.raises(ReplayError, match="timeout_s=-1"):
        Counters(1).wait(0, 1, -1)
