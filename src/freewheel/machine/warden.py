"""The warden: a small process that outlives the supervisor for a moment and kills what is left of the run.

Roles die with the supervisor, but programs that an env started do not. The supervisor writes the process groups of its roles to the
warden's standard input. When that closes, the warden kills them, and every process with the run's mark in its environment. It also
removes the folder of the supervisor's sockets.

It runs as a script without the package, so that it starts at once. The package uses `kill_marked` too.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence

PATIENCE_S = 1.5


def main() -> None:
    mark, folder = sys.argv[1:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        word = line.strip()
        if word.startswith("-"):
            groups.discard(int(word[1:]))
        else:
            groups.add(int(word))
    end = time.monotonic() + PATIENCE_S
    while kill_groups(groups) + kill_marked([mark]) and time.monotonic() < end:
        time.sleep(0.02)  # killed processes take a moment to end
    if folder:
        shutil.rmtree(folder, ignore_errors=True)


def kill_groups(groups: set[int]) -> int:
    killed = 0
    for group in sorted(groups):
        try:
            os.killpg(group, signal.SIGKILL)
            killed += 1
        except OSError:
            groups.discard(group)
    return killed


def kill_marked(marks: Sequence[str]) -> int:
    """Kills every other process that has one of these marks, or a mark below it, in its environment."""
    wanted = [mark.encode() for mark in marks]
    killed = 0
    for name in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                found = [line + b"/" for line in file.read().split(b"\0")]
            if any(line.startswith(mark + b"/") for line in found for mark in wanted):
                os.kill(int(name), signal.SIGKILL)
                killed += 1
        except OSError:
            continue  # it has ended, or belongs to another user
    return killed


if __name__ == "__main__":
    main()
