"""The folder in which multiprocessing keeps its sockets. A killed process cannot remove its folder: a later start does."""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import os
import shutil
import tempfile
from multiprocessing.util import Finalize
from typing import Any

PREFIX = "fw-mp-"  # short: the path of a socket has at most 107 bytes

_made: dict[int, tuple[str, int]] = {}  # path and lock by process: a child uses the folder of its parent


def use_own_folder() -> None:
    """Makes the folder, unless multiprocessing has one that is still there, and removes those of dead processes."""
    process: Any = multiprocessing.current_process()
    if os.path.isdir(process._config.get("tempdir") or ""):
        return
    parent = tempfile.gettempdir()
    sweep(parent)
    new = tempfile.mkdtemp(dir=parent)
    # A folder with this prefix that is not locked has no owner. The lock ends with this process.
    lock = os.open(new, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    path = os.path.join(parent, PREFIX + os.path.basename(new).removeprefix("tmp"))
    os.rename(new, path)
    if os.getpid() in _made:
        os.close(_made[os.getpid()][1])
    process._config["tempdir"], _made[os.getpid()] = path, (path, lock)
    Finalize(None, shutil.rmtree, (path, True), exitpriority=-100)  # when multiprocessing would remove its own


def own_folder() -> str:
    """The folder that this process has made, or nothing."""
    return _made[os.getpid()][0] if os.getpid() in _made else ""


def sweep(parent: str) -> None:
    """Removes the folders of dead processes."""
    for entry in os.scandir(parent):
        if not entry.name.startswith(PREFIX) or not entry.is_dir(follow_symlinks=False):
            continue
        with contextlib.suppress(OSError):  # its process lives, or it belongs to another user
            fd = os.open(entry.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(entry.path, ignore_errors=True)
            finally:
                os.close(fd)
