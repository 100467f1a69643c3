"""Files that are complete or absent when written, and never trusted when read.

Reading refuses links, pipes, devices and folders, and limits bytes and values before it uses memory.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import shutil
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from freewheel.errors import CheckpointError
from freewheel.machine.process import is_alive

# Files are read in pieces: the checksum of a replay of many gigabytes needs one megabyte of memory.
PIECE_BYTES = 1 << 20
# A JSON value of three bytes takes about 70 as a Python object: this many stay below 100 MB.
MOST_VALUES = 1_000_000

TEMP = re.compile(r"\.tmp-([1-9]\d{0,17})-[0-9a-f]{8}")


def temp_in(folder: Path) -> Path:
    """A name for an unfinished file. It has the pid, so that the files of a dead process can be removed."""
    return folder / f".tmp-{os.getpid()}-{secrets.token_hex(4)}"


@contextmanager
def temp_folder(parent: Path) -> Iterator[Path]:
    """A new folder that is gone afterwards, unless it was renamed. Only its owner can read it."""
    parent.mkdir(parents=True, exist_ok=True)
    temp = temp_in(parent)
    try:
        os.mkdir(temp, 0o700)
        yield temp
    finally:
        remove(temp)


def sweep(folder: Path, own: bool = False) -> None:
    """Removes unfinished files of dead processes, and with `own` of this process."""
    for name in os.listdir(folder):
        match = TEMP.fullmatch(name)
        if match and (own if int(match[1]) == os.getpid() else not is_alive(int(match[1]))):
            remove(folder / name)


def write_new(path: Path, data: bytes, is_durable: bool = True) -> None:
    """Writes a new file. If `is_durable`, it survives a crash of the machine."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        rest = memoryview(data)
        while rest:  # a disk that is getting full takes a part, and fails at the next call
            rest = rest[os.write(fd, rest) :]
        if is_durable:
            os.fsync(fd)
    finally:
        os.close(fd)


def replace(path: Path, data: bytes, is_durable: bool = True) -> None:
    """Replaces a small file: a reader sees the old or the new one, never a part."""
    temp = temp_in(path.parent)
    try:
        write_new(temp, data, is_durable)
        os.rename(temp, path)
    except BaseException:
        remove(temp)
        raise
    if is_durable:
        sync_folder(path.parent)


def overwrite(path: Path, data: bytes) -> None:
    """Writes over a small text in place, with spaces at the end of a shorter one: a full disk and a folder that is closed to new
    files still take that.
    """
    fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        data = data.ljust(os.fstat(fd).st_size)
        if os.pwrite(fd, data, 0) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(fd)


def sync_folder(path: Path) -> None:
    """Flushes a folder's names to disk; a rename is durable after this."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def remove(path: Path) -> None:
    """Removes a file, a link or a folder as far as possible. The next start removes the rest."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink(missing_ok=True)


@contextmanager
def open_folder(path: Path) -> Iterator[int]:
    """A descriptor of a folder that is not a link, to open files relative to it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except NotADirectoryError:
        raise CheckpointError("it is a link or a file, not a folder.") from None
    except OSError as error:
        raise CheckpointError(f"it cannot be read: {error.strerror}.") from error
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def open_file(name: str, folder_fd: int) -> Iterator[tuple[int, int]]:
    """Descriptor and size of a regular file in an open folder. Never blocks, even if it is a pipe."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder_fd)
    except FileNotFoundError:
        raise CheckpointError(f"{name} is missing.") from None
    except OSError as error:
        raise CheckpointError(f"{name} cannot be read: {error.strerror}.") from error
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise CheckpointError(f"{name} is not a regular file.")
        yield fd, status.st_size
    finally:
        os.close(fd)


def read_bytes(name: str, folder_fd: int, most_bytes: int) -> bytes:
    """All of a small file."""
    with open_file(name, folder_fd) as (fd, size):
        if size > most_bytes:
            raise CheckpointError(f"{name} has {size:,} bytes, more than the limit of {most_bytes:,}.")
        pieces = []
        while piece := os.read(fd, most_bytes + 1):
            pieces.append(piece)
        return b"".join(pieces)


def checksum(fd: int) -> int:
    """CRC-32 of the whole file: detects every single flipped bit and every burst of up to 32 bits."""
    os.lseek(fd, 0, os.SEEK_SET)
    buffer = memoryview(bytearray(PIECE_BYTES))
    crc = 0
    while size := os.readv(fd, [buffer]):
        crc = zlib.crc32(buffer[:size], crc)
    return crc


def parse_json(name: str, data: bytes) -> dict[str, Any]:
    """The JSON object in `data`. Refuses too many values, and too deep nesting."""
    num_values = count_values(data)
    if num_values > MOST_VALUES:
        raise CheckpointError(f"{name} holds about {num_values:,} values, more than the limit of {MOST_VALUES:,}.")
    try:
        value = json.loads(data)
    except RecursionError:
        raise CheckpointError(f"{name} is nested too deep.") from None
    except ValueError as error:
        raise CheckpointError(f"{name} is not JSON: {error}.") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{name} holds a {type(value).__name__}, not an object.")
    return value


def count_values(data: bytes) -> int:
    """An upper bound of the values in JSON text; commas and brackets in strings count too."""
    return data.count(b",") + data.count(b"[") + data.count(b"{")
