"""All processes of a run by what they are: the killer's list."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

from fault_runs import is_alive

SERVER, TRACKER, WARDEN = "multiprocessing.forkserver import main", "resource_tracker import main", "warden.py"


def by_kind(supervisor: int) -> dict[str, list[int]]:
    """The living processes below the supervisor, without those that envs started.

    A forked process shows the command of the forkserver that it comes from: a role is a child of one, and so is a pool's worker.
    """
    found: dict[str, list[int]] = {}

    def add(kind: str, pid: int) -> list[int]:
        found.setdefault(kind, []).append(pid)
        return children(pid)

    for pid in children(supervisor):
        words = command_of(pid)
        if TRACKER in words:
            add("tracker", pid)
        elif WARDEN in words:
            add("warden", pid)
        elif SERVER in words:
            for role in add("forkserver", pid):
                for server in add("role", role):
                    if SERVER in command_of(server):
                        for worker in add("pool forkserver", server):
                            add("pool worker", worker)
    return found


def children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        pids = [
            int(word)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for word in (task / "children").read_text().split()
        ]
        return [pid for pid in pids if is_alive(pid)]
    return []


def command_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def state_of(pid: int) -> str:
    """R, S, T and so on; Z if it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return "Z"


@contextlib.contextmanager
def kept_stopped(pid: int) -> Iterator[None]:
    """Whoever wakes it."""
    is_over = threading.Event()

    def stop() -> None:
        with contextlib.suppress(ProcessLookupError):
            while not is_over.wait(0.002):
                os.kill(pid, signal.SIGSTOP)

    thread = threading.Thread(target=stop)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
