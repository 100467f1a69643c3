"""The warden: a small process that outlives the supervisor by a moment and ends what it left running.

Roles die with the supervisor by themselves; what an env started (another program, a helper process) does not. The supervisor
writes the process groups of its roles to the warden's standard input; when that closes, the warden kills them, and every process
that carries the run's mark in its environment.

Runs as a script without the package: it must start at once and need nothing.
"""

from __future__ import annotations

import os
import signal
import sys
import time

PATIENCE_S = 1.5


def main() -> None:
    mark = sys.argv[1].encode()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        word = line.strip()
        if word == "done":
            return
        if word.startswith("-"):
            groups.discard(int(word[1:]))
        else:
            groups.add(int(word))
    end = time.monotonic() + PATIENCE_S
    while kill_groups(groups) + kill_marked(mark) and time.monotonic() < end:
        time.sleep(0.02)  # the killed need a moment to go; nobody can be asked to wake us


def kill_groups(groups: set[int]) -> int:
    killed = 0
    for group in sorted(groups):
        try:
            os.killpg(group, signal.SIGKILL)
            killed += 1
        except OSError:
            groups.discard(group)
    return killed


def kill_marked(mark: bytes) -> int:
    """Every process whose environment began with the mark, but this one."""
    killed = 0
    for name in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                if mark not in file.read().split(b"\0"):
                    continue
            os.kill(int(name), signal.SIGKILL)
            killed += 1
        except OSError:
            continue  # gone, or not ours
    return killed


if __name__ == "__main__":
    main()
