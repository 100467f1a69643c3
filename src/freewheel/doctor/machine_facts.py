"""Facts about the machine that decide how a run goes: cores, memory, limits, compiler, threads."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import resource
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from freewheel.config import Config
from freewheel.doctor.facts import MACHINE, SOFTWARE, Fact, State
from freewheel.errors import FreewheelError
from freewheel.machine.cores import affinity, cpu_quota, num_cores
from freewheel.machine.threads import VARIABLES
from freewheel.memory.counter import Counters
from freewheel.memory.segment import Segment, allowed_bytes, format_bytes

PACKAGES = ("freewheel", "torch", "numpy", "gymnasium")

# Each role is a process with torch loaded.
LITTLE_MEMORY = 10**9
# The supervisor holds some descriptors for each role, and envs open files of their own.
FEW_FILES, TOO_FEW_FILES = 1024, 128
FEW_PROCESSES = 512
# Torch maps some gigabytes of libraries and heaps that are never touched.
LITTLE_ADDRESS_SPACE = 16 * 10**9
LITTLE_DISK = 10**9
WAKE_TIMEOUT_S = 5.0
COMPILER_TIMEOUT_S = 10.0


def machine_facts(config: Config) -> list[Fact]:
    """All facts that need no torch, in the order in which they are shown."""
    return [
        _cores(),
        *_load(),
        _memory(),
        _shared_folder(),
        *_limits(),
        _shared_memory(),
        _waits(),
        _run_folder(Path(config.log.folder)),
        *_versions(),
        _compiler(config),
        _threads(config),
    ]


def _cores() -> Fact:
    cores, quota, present = num_cores(), cpu_quota(), os.cpu_count()
    value = {"usable": cores, "affinity": affinity(), "there": present, "quota": quota}
    limit = "no CPU quota" if quota is None else f"a CPU quota of {quota:.4g}"
    cure = "Actors and learner cannot run side by side on 1 core, so train uses runtime=sequential."
    shown = f"{cores} usable (affinity {affinity()} of {present}, {limit})"
    return Fact(MACHINE, "cores", shown, value).flagged(cores < 2, cure)


def _load() -> Iterator[Fact]:
    with contextlib.suppress(OSError):
        load, cores = os.getloadavg()[0], num_cores()
        cure = f"Other programs use the {cores} cores too. Stop them, or expect a slower run."
        yield Fact(MACHINE, "load", f"{load:.1f} over the last minute", load).flagged(load >= 0.7 * cores, cure)


def _memory() -> Fact:
    allowed, source = allowed_bytes()
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    shown = f"{format_bytes(allowed)} available (limited by {source}), {format_bytes(total)} installed"
    value = {"allowed_bytes": allowed, "set_by": source, "total_bytes": total}
    cure = "Each role is a process with torch. Stop other programs, raise the container's limit, or use --runtime sequential."
    return Fact(MACHINE, "memory", shown, value).flagged(allowed < LITTLE_MEMORY, cure)


def _shared_folder() -> Fact:
    try:
        size = shutil.disk_usage("/dev/shm").total
    except OSError:
        note = "The replay does not need it; vector envs with their own processes may."
        return Fact(MACHINE, "/dev/shm", "missing", None, "ok", note)
    return Fact(MACHINE, "/dev/shm", f"{format_bytes(size)} (the replay does not use it)", size)


def _limits() -> Iterator[Fact]:
    """Limits of a process that can affect a run."""
    cure = f"Raise it: ulimit -n {FEW_FILES * 4}."
    files = _limit("open files", resource.RLIMIT_NOFILE, "{:,}".format, FEW_FILES, cure)
    yield files.flagged((files.value or FEW_FILES) < TOO_FEW_FILES, cure, "problem")
    cure = f"It counts all threads of the user, and each role has several. Raise it: ulimit -u {FEW_PROCESSES * 8}."
    yield _limit("processes", resource.RLIMIT_NPROC, "{:,}".format, FEW_PROCESSES, cure)
    yield _limit("locked memory", resource.RLIMIT_MEMLOCK, format_bytes)
    cure = "Checkpoints and the replay cannot be larger. Lift it: ulimit -f unlimited."
    yield _limit("file size", resource.RLIMIT_FSIZE, format_bytes, 2**62, cure)
    cure = "Torch maps more than it uses, and each role maps the whole replay. Lift it: ulimit -v unlimited."
    yield _limit("address space", resource.RLIMIT_AS, format_bytes, LITTLE_ADDRESS_SPACE, cure)


def _limit(name: str, kind: int, text: Callable[[int], str], least: int = 0, cure: str = "") -> Fact:
    limit = resource.getrlimit(kind)[0]
    if limit == resource.RLIM_INFINITY:
        return Fact(MACHINE, name, "no limit")
    return Fact(MACHINE, name, f"limited to {text(limit)}", limit).flagged(limit < least, cure)


def _shared_memory() -> Fact:
    try:
        Segment.create(4096, "a segment to try")
    except FreewheelError as error:
        return Fact(MACHINE, "shared memory", f"does not work: {error}", False, "problem", "The replay needs it.")
    return Fact(MACHINE, "shared memory", "works (memfd)", True)


def _waits() -> Fact:
    """Sleeps on a counter twice: until the time is over, and until another thread wakes it."""
    try:
        counters = Counters(1)
        sleeps = not counters.wait(0, 1, 0.001)
        waker = threading.Timer(0.02, counters.add, (0,))
        waker.start()
        is_woken = counters.wait(0, 1, WAKE_TIMEOUT_S)
        waker.join()
    except FreewheelError as error:
        return Fact(
            MACHINE, "waits", f"do not work: {error}", False, "problem", "Processes wait for each other by them."
        )
    if sleeps and is_woken:
        return Fact(MACHINE, "waits", "work (futex)", True)
    cure = "The kernel or its sandbox blocks futex: allow it."
    return Fact(MACHINE, "waits", "a sleeping thread was not woken", False, "problem", cure)


def _run_folder(folder: Path) -> Fact:
    present = next(place for place in [folder.absolute(), *folder.absolute().parents] if place.exists())
    free = shutil.disk_usage(present).free
    if not os.access(present, os.W_OK | os.X_OK):
        cure = "Run from another folder, or set --log.folder."
        return Fact(MACHINE, "run folder", f"{present} is not writable", free, "problem", cure)
    cure = "Checkpoints need space. Remove old runs with freewheel runs clean."
    return Fact(MACHINE, "run folder", f"{folder}: {format_bytes(free)} free", free).flagged(free < LITTLE_DISK, cure)


def _versions() -> Iterator[Fact]:
    python = f"{platform.python_version()} ({platform.python_implementation()}, {sys.platform})"
    yield Fact(SOFTWARE, "Python", python, platform.python_version())
    for name in PACKAGES:
        try:
            version = importlib.metadata.version(name)
            yield Fact(SOFTWARE, name, version, version)
        except importlib.metadata.PackageNotFoundError:
            yield Fact(SOFTWARE, name, "not installed", None, "problem", f"Install it: pip install {name}.")


def _compiler(config: Config) -> Fact:
    """The compiler that torch uses for compiled updates."""
    name = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    path, said = shutil.which(name), ""
    if path is not None:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=COMPILER_TIMEOUT_S)
            said = done.stdout.partition("\n")[0].strip() if done.returncode == 0 else ""
    if said:
        return Fact(SOFTWARE, "C++ compiler", f"{said} ({path})", path)
    shown = f"{name} was not found" if path is None else f"{path} does not work"
    if config.learner.compile == "off":
        return Fact(SOFTWARE, "C++ compiler", f"{shown}; learner.compile=off needs none")
    state: State = "problem" if config.learner.compile == "on" else "warning"
    cure = f"Updates cannot be compiled, so they run eagerly. Install {name}, or set CXX to another compiler."
    return Fact(SOFTWARE, "C++ compiler", shown, None, state, cure)


def _threads(config: Config) -> Fact:
    threads, cores = config.learner.threads or 1, num_cores()
    present = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    shown = f"{threads} in the learner (learner.threads), set for OpenMP, MKL and torch"
    if not config.learner.threads:
        shown += "; for images the fastest number"
    other = [f"{name}={number}" for name, number in present.items() if number != str(threads)]
    if other:
        shown += f"; this overrides {', '.join(other)} of the environment"
    cure = f"This machine has {cores} cores, and more threads than cores slow each other down. Lower --learner.threads."
    fact = Fact(SOFTWARE, "threads", shown, {"learner": threads, "environment": present})
    return fact.flagged(threads > cores, cure)
