"""The system's limits on open files, processes, threads and memory: a run that needs more is refused, and an error that one has caused
names it."""

from __future__ import annotations

import errno
import resource
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from freewheel.errors import ConfigError, EnvError, FreewheelError, RoleLost, exits_are_errors, shown
from freewheel.memory.segment import control_groups

# Measured with the smallest runs: a sequential one needs 15 descriptors in all, a local one with n roles 20 + 3 n. A run has a thread
# for its logs; one with other processes has a forkserver, its tracker, the warden and a learner's thread besides.
FILES, FILES_EACH, TASKS, TASKS_OF_MANY = 20, 3, 1, 5
FEWER = (
    "Raise it, start fewer processes (local.actors, world.workers), or use runtime=sequential with world.kind=inline."
)
# What torch's allocators say.
NO_MEMORY = ("DefaultCPUAllocator", "can't allocate memory", "not enough memory", "out of memory")


def refuse_limits(count: int, root: Path = Path("/")) -> None:
    """Refuses a run with so many other processes where this process may not have them, or the files that they need."""
    who, needed = f"a run with {count} other processes", FILES + FILES_EACH * count
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if most != resource.RLIM_INFINITY and needed > most:
        raise ConfigError(f"{who} needs about {needed} open files, and the limit is {most} (ulimit -n). {FEWER}")
    needed = count + (TASKS_OF_MANY if count else TASKS)
    for most, used in _task_limits(root):
        if used + needed > most:
            raise ConfigError(
                f"{who} needs about {needed} more processes and threads; this container has {used}, and allows {most} "
                f"(pids.max). {FEWER}"
            )


def is_shortage(error: BaseException) -> bool:
    """Of memory."""
    said = str(error) if isinstance(error, RuntimeError) else ""
    is_device = type(error).__name__ == "OutOfMemoryError"  # torch's, by its name: importing torch takes seconds
    return isinstance(error, MemoryError) or is_device or any(words in said for words in NO_MEMORY)


@contextmanager
def system_errors_named(with_exits: bool = False) -> Iterator[None]:
    """Errors that the system has caused become errors of ours, which name the cause; `with_exits` also a sys.exit() of the user's code."""
    try:
        with exits_are_errors() if with_exits else nullcontext():
            yield
    except FreewheelError:
        raise
    except Exception as error:
        if found := named(error):
            # A ConfigError is shown without its cause; the cause of the others would show nothing of the user's code.
            raise found from (error if isinstance(found, ConfigError) else None)
        raise


def named(error: Exception) -> FreewheelError | None:
    """Ours for an error of the system; None for every other one."""
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.EMFILE, errno.ENFILE):
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return ConfigError(f"too many open files; the limit of a process is {most} (ulimit -n). {FEWER}")
    if isinstance(error, OSError) and number == errno.ENAMETOOLONG:
        return ConfigError(f"a name is too long for a file or folder: {shown(error.filename)}. Give a shorter one.")
    if number == errno.EBADF:
        return EnvError(
            f"a file descriptor of this process was closed while it was in use ({error}). An env or a callback may close only "
            "what it has opened itself: look for os.close and os.closerange."
        )
    if (number == errno.EAGAIN and _was_starting(error)) or "can't start new thread" in str(error):
        return ConfigError(f"no more processes or threads can be started: {_tasks()}. {FEWER}")
    if isinstance(error, (EOFError, ConnectionError)) and _was_starting(error):
        return RoleLost(
            "the process from which others are started (forkserver) is gone. Something killed it: look at the machine's memory "
            "(dmesg). Or an env has closed the descriptors of this process: look for os.closerange."
        )
    if "AF_UNIX path too long" in str(error):
        folder = tempfile.gettempdir()
        return ConfigError(
            f"processes are started through a socket in the folder of temporary files, whose name of {len(folder)} characters is "
            f"too long for that: {folder}. Set TMPDIR to one of at most 70, such as /tmp."
        )
    if is_shortage(error):
        why = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        return ConfigError(
            f"memory ran out: {why.rstrip('.')}. Use a smaller network, smaller batches, fewer lanes or fewer rows."
        )
    return None


def _was_starting(error: Exception) -> bool:
    """Whether it comes from the start of a process, and not from a socket or file of the user's."""
    *_, last = traceback.extract_tb(error.__traceback__)
    return "fork" in (last.line or "") or Path(last.filename).parent.name == "multiprocessing"


def _tasks() -> str:
    found = [f"this container allows {most} (pids.max) and has {used}" for most, used in _task_limits(Path("/"))]
    own = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    found += [f"a user may have {own} (ulimit -u)"] if own != resource.RLIM_INFINITY else []
    return ", ".join(found) or "the machine has no room"


def _task_limits(root: Path) -> Iterator[tuple[int, int]]:
    """What each control group of this process allows, and has."""
    for group in control_groups(root, "pids"):
        with suppress(OSError, ValueError):  # no such file, or the limit is "max"
            most, used = (int((group / f"pids.{name}").read_text()) for name in ("max", "current"))
            yield most, used
