"""Limits of the system: a run that needs more is refused with both numbers, and an error that one causes names it."""

from __future__ import annotations

import errno
import multiprocessing.forkserver
import os
import resource
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from freewheel.errors import ConfigError, EnvError, FreewheelError, RoleLost
from freewheel.machine.limits import is_shortage, refuse_limits, system_errors_named


def group(root: Path, most: str, used: int) -> Path:
    """A machine whose control group allows so many processes."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text("0::/job\n")
    folder = root / "sys/fs/cgroup/job"
    folder.mkdir(parents=True)
    (folder / "pids.max").write_text(f"{most}\n")
    (folder / "pids.current").write_text(f"{used}\n")
    return root


def test_f29_too_few_processes_are_refused_with_both_numbers(tmp_path: Path) -> None:
    root = group(tmp_path, "14", 5)
    refuse_limits(4, root)
    with pytest.raises(
        ConfigError, match=r"5 other processes needs about 10 more .* has 5, and allows 14 \(pids.max\).*local.actors"
    ):
        refuse_limits(5, root)


def test_f29_a_run_of_one_process_needs_a_thread(tmp_path: Path) -> None:
    root = group(tmp_path, "2", 1)
    refuse_limits(0, root)
    (root / "sys/fs/cgroup/job/pids.max").write_text("1")
    with pytest.raises(ConfigError, match="0 other processes needs about 1 more"):
        refuse_limits(0, root)


def test_f29_a_group_without_a_limit_refuses_nothing(tmp_path: Path) -> None:
    refuse_limits(100, group(tmp_path, "max", 5))


def test_f29_too_few_files_are_refused_with_both_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (24, 24))
    refuse_limits(1, tmp_path)
    with pytest.raises(
        ConfigError, match=r"2 other processes needs about 26 open files, and the limit is 24 \(ulimit -n\)"
    ):
        refuse_limits(2, tmp_path)


def no_files() -> None:
    raise OSError(errno.EMFILE, "Too many open files")


def no_thread() -> None:
    raise RuntimeError("can't start new thread")


def no_process() -> None:
    os.fork = lambda: (_ for _ in ()).throw(BlockingIOError(errno.EAGAIN, "again"))  # type: ignore[assignment,method-assign]
    os.fork()


def long_path() -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("x" * 200)


def no_forkserver() -> None:
    with open(os.devnull) as file:
        multiprocessing.forkserver.read_signed(file.fileno())  # type: ignore[attr-defined]


def long_name() -> None:
    os.stat("x" * 5_000)


def closed() -> None:
    os.close(999_999)


def no_memory() -> None:
    torch.empty(1 << 60, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("fails", "kind", "words"),
    [
        (no_files, ConfigError, r"too many open files; the limit of a process is \d+ \(ulimit -n\)"),
        (no_thread, ConfigError, "no more processes or threads can be started: .*Raise it"),
        (no_process, ConfigError, "no more processes or threads can be started: "),
        (long_path, ConfigError, r"whose name of \d+ characters is too long .* Set TMPDIR"),
        (no_forkserver, RoleLost, "forkserver.* is gone"),
        (long_name, ConfigError, r"too long for a file or folder: 'x{199}\.\.\. \(5,002 characters\)\. Give a shorter"),
        (closed, EnvError, "descriptor of this process was closed .*os.closerange"),
        (no_memory, ConfigError, "memory ran out: .*DefaultCPUAllocator.* Use a smaller network"),
    ],
)
def test_f29_an_error_of_the_system_becomes_ours(
    fails: Callable[[], None], kind: type[FreewheelError], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fork", os.fork)
    with pytest.raises(kind, match=words), system_errors_named():
        fails()


@pytest.mark.parametrize(
    "error", [ValueError("no"), BlockingIOError(errno.EAGAIN, "a pipe of the user's"), EOFError(), OSError(5, "disk")]
)
def test_f29_other_errors_stay_as_they_are(error: Exception) -> None:
    with pytest.raises(type(error)) as seen, system_errors_named():
        raise error
    assert seen.value is error


def test_f29_an_exit_is_an_error_only_where_it_is_asked_for() -> None:
    with pytest.raises(SystemExit), system_errors_named():
        raise SystemExit(0)
    with pytest.raises(RoleLost, match="sys.exit"), system_errors_named(with_exits=True):
        raise SystemExit(0)


def test_a_shortage_is_known_by_its_words() -> None:
    assert is_shortage(MemoryError())
    assert is_shortage(torch.OutOfMemoryError("CUDA out of memory"))
    assert not is_shortage(RuntimeError("mat1 and mat2"))
