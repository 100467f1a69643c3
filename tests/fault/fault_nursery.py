"""Runs under test are forked from this process, which has everything imported: that saves each of them two seconds.

Reads one JSON object per line: what to call, where, and with which environment. Answers with the process id. The exit code
of a run lands in its folder as `exit`. Orphans of a run become children of this process, so that the tests see them.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import selectors
import signal
import sys
import traceback
from typing import Any

PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    from freewheel.machine.threads import limit_threads

    limit_threads(1)
    for name in ("freewheel.cli.train", "freewheel.train", "freewheel.run.entry", "fault_drive"):
        importlib.import_module(name)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    folders: dict[int, str] = {}
    selector = selectors.DefaultSelector()
    selector.register(0, selectors.EVENT_READ)
    selector.register(woken, selectors.EVENT_READ)
    say({"ready": os.getpid()})
    waiting = b""
    while True:
        for key, _ in selector.select():
            if key.fd == woken:
                os.read(woken, 1000)
                continue
            data = os.read(0, 1 << 16)
            if not data:
                return
            *lines, waiting = (waiting + data).split(b"\n")
            for line in lines:
                order = json.loads(line)
                pid = fork(order)
                folders[pid] = order["folder"]
                say({"pid": pid})
        reap(folders)


def say(message: dict[str, Any]) -> None:
    os.write(1, json.dumps(message).encode() + b"\n")


def reap(folders: dict[int, str]) -> None:
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            if pid in folders:
                path = os.path.join(folders.pop(pid), "exit")
                with open(path + ".new", "w") as file:
                    file.write(str(os.waitstatus_to_exitcode(status)))
                os.rename(path + ".new", path)


def fork(order: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        os.chdir(order["folder"])
        for fd, name, flags in ((0, "/dev/null", os.O_RDONLY), (1, "out", OUT), (2, "err", OUT)):
            opened = os.open(name, flags, 0o600)
            os.dup2(opened, fd)
            os.close(opened)
        os.closerange(3, 256)
        os.environ.update(order["environment"])
        module, _, function = order["call"].partition(":")
        signal.signal(signal.SIGINT, signal.default_int_handler)
        code = getattr(importlib.import_module(module), function)(order["arguments"])
    except BaseException:
        traceback.print_exc()
    finally:
        leave(code)
    return 0


OUT = os.O_WRONLY | os.O_CREAT | os.O_APPEND


def leave(code: int) -> None:
    """As the interpreter does when a command returns: threads, exit functions, buffers."""
    import atexit
    import threading

    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
