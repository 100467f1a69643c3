"""F18: importing us changes nothing in the process; shared memory goes to children that were spawned, never by a fork."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from fault_runs import TIMES
from gymnasium import spaces

from freewheel.errors import ReplayError
from freewheel.memory.counter import Counters
from freewheel.memory.lanes import Lanes
from freewheel.report.ledger import Ledger
from freewheel.spec import RowSpec
from freewheel.weights.board import Board

MAKE: dict[str, Callable[[], Any]] = {
    "lanes": lambda: Lanes(RowSpec.of(spaces.Discrete(5), spaces.Discrete(2)), 1, 50),
    "board": lambda: Board(400),
    "counters": lambda: Counters(1),
    "ledger": lambda: Ledger(1, ["work"]),
}

IMPORT = """
import os, torch, numpy, gymnasium, tensorboard  # theirs are not ours to count
state = lambda: (len(os.listdir("/proc/self/task")), {fd: os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")})
before = state()
import freewheel, freewheel.train, freewheel.run.entry, freewheel.run.local, freewheel.cli.main
after = state()
assert before[0] == after[0], "a thread was started"
assert before[1].keys() == after[1].keys(), (before, after)
assert not torch.cuda.is_initialized()
import multiprocessing.forkserver as server
assert server._forkserver._forkserver_pid is None, "a process was started"
"""


def test_f18_importing_the_whole_runtime_starts_and_opens_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", MAKE)
def test_f18_shared_memory_is_pickled_into_a_process_only(kind: str) -> None:
    with pytest.raises(ReplayError, match="arguments of a multiprocessing Process"):
        pickle.dumps(MAKE[kind]())


def use(lanes: Lanes, board: Board, counters: Counters, ledger: Ledger) -> None:
    """What every role does with them."""
    lanes.writer().append(
        np.zeros(1, np.int64),
        {"obs": np.ones(1, np.int64), "action": np.zeros(1, np.int64)},
        np.zeros(1, np.float32),
        np.zeros(1, np.bool_),
        np.zeros(1, np.bool_),
    )
    board.publish(torch.ones(100))
    ledger.page(0).start(0)
    counters.add(0)


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_f18_children_use_what_they_are_given(method: str) -> None:
    shared = [make() for make in MAKE.values()]
    done = threading.Event()
    threads = [threading.Thread(target=done.wait, args=(60,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(1 if TIMES == 1 else 20):
            process = multiprocessing.get_context(method).Process(target=use, args=shared)
            process.start()
            process.join(60)
            assert process.exitcode == 0
            process.close()
    finally:
        done.set()
        for thread in threads:
            thread.join()
    lanes, board, counters, _ = shared
    assert lanes.rows_written() == board.version == counters.value(0) >= 1


FORK = """
import os, sys
from test_f18_start_methods import MAKE, use
from freewheel.errors import ReplayError
shared = [make() for make in MAKE.values()]
pid = os.fork()
if pid == 0:
    try:
        use(*shared)
    except ReplayError as error:
        os._exit(0 if "before a fork" in str(error) else 2)
    os._exit(1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_f18_a_fork_is_refused() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", FORK], capture_output=True, text=True, timeout=60, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
