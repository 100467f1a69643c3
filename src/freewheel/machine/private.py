"""Files that nobody but this user can have written: keys, and what is loaded as code."""

from __future__ import annotations

import os
import stat
from pathlib import Path

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
OTHERS_READ = stat.S_IRWXG | stat.S_IRWXO


def why_not_private(path: Path) -> str:
    """Why others may have put something into a folder; "" if only this user could."""
    try:
        status, above = os.lstat(path), os.stat(path.parent)
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    if not stat.S_ISDIR(status.st_mode):
        return f"{path} is a link or no folder"
    if above.st_mode & OTHERS_WRITE and not above.st_mode & stat.S_ISVTX:
        return f"others can replace {path}"
    return _why_foreign(path, status, OTHERS_WRITE)


def make_folder(path: Path) -> None:
    """Makes a folder that is this user's alone, or closes the one that is there to others. A PermissionError says why it cannot be."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = os.lstat(path)
    if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and status.st_mode & OTHERS_READ:
        os.chmod(path, 0o700)
    if why := why_not_private(path):
        raise PermissionError(1, why)


def read(path: Path, most_bytes: int, is_secret: bool = False) -> bytes:
    """All of a regular file of this user. A PermissionError says who else may have written it, or read it if it `is_secret`.

    What is returned is what was looked at: the file is opened once. Never blocks, even if it is a pipe.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > most_bytes:
            raise PermissionError(1, f"{path} is no file of at most {most_bytes:,} bytes")
        if why := _why_foreign(path, status, OTHERS_READ if is_secret else OTHERS_WRITE):
            raise PermissionError(1, why)
        with open(fd, "rb", closefd=False) as file:
            return file.read(most_bytes)
    finally:
        os.close(fd)


def write_new(path: Path, data: bytes) -> None:
    """Writes a new file that only this user can read."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(fd)


def _why_foreign(path: Path, status: os.stat_result, forbidden: int) -> str:
    if status.st_uid != os.geteuid():
        return f"{path} belongs to user {status.st_uid}, not to you ({os.geteuid()})"
    if status.st_mode & forbidden:
        return f"others may {'write' if status.st_mode & OTHERS_WRITE else 'read'} {path} (mode {stat.S_IMODE(status.st_mode):o})"
    return ""
