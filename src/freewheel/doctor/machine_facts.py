"""Facts about the machine that decide how a run goes: cores, memory, limits, compiler, threads."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from freewheel.config import Config
from freewheel.doctor.facts import Fact, State
from freewheel.errors import FreewheelError
from freewheel.machine.cores import affinity, cpu_quota, num_cores
from freewheel.machine.threads import VARIABLES
from freewheel.memory.counter import Counters
from freewheel.memory.segment import Segment, allowed_bytes, format_bytes

MACHINE, SOFTWARE = "machine", "software"
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
    """All of them, in the order in which they are shown. What needs torch is not among them."""
    return [
        _cores(),
        *_load(),
        *_memory(),
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
    cores, quota, there = num_cores(), cpu_quota(), os.cpu_count()
    parts = [f"{affinity()} of {there} by affinity"]
    parts.append("no quota" if quota is None else f"a quota of {quota:.4g}")
    value = {"usable": cores, "affinity": affinity(), "there": there, "quota": quota}
    shown = f"{cores} to use ({', '.join(parts)})"
    if cores > 1:
        return Fact(MACHINE, "cores", shown, value)
    cure = "Actors and learner cannot run side by side on 1 core; train takes turns (runtime=sequential)."
    return Fact(MACHINE, "cores", shown, value, "warning", cure)


def _load() -> Iterator[Fact]:
    try:
        load = os.getloadavg()[0]
    except OSError:
        return
    shown, cores = f"{load:.1f} over the last minute", num_cores()
    if load < 0.7 * cores:
        yield Fact(MACHINE, "load", shown, load)
    else:
        cure = f"Other programs want the {cores} cores too; end them, or expect a slower run."
        yield Fact(MACHINE, "load", shown, load, "warning", cure)


def _memory() -> Iterator[Fact]:
    allowed, source = allowed_bytes()
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    shown = f"{format_bytes(allowed)} may be taken ({source}), {format_bytes(total)} in the machine"
    value = {"allowed_bytes": allowed, "set_by": source, "total_bytes": total}
    if allowed >= LITTLE_MEMORY:
        yield Fact(MACHINE, "memory", shown, value)
    else:
        cure = "Each role is a process with torch: end other programs, give the container more, or use --runtime sequential."
        yield Fact(MACHINE, "memory", shown, value, "warning", cure)


def _shared_folder() -> Fact:
    try:
        size = shutil.disk_usage("/dev/shm").total
    except OSError:
        note = "The replay does not need it; vector envs with processes of their own may."
        return Fact(MACHINE, "/dev/shm", "is not there", None, "ok", note)
    return Fact(MACHINE, "/dev/shm", f"{format_bytes(size)} (the replay does not use it)", size)


def _limits() -> Iterator[Fact]:
    """Limits of a process that a run can meet; others have no effect on it."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    state: State = "problem" if _below(files, TOO_FEW_FILES) else "warning" if _below(files, FEW_FILES) else "ok"
    yield _limit("open files", files, f"{files:,}", state, f"Raise it: ulimit -n {FEW_FILES * 4}.")
    processes = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    state = "warning" if _below(processes, FEW_PROCESSES) else "ok"
    cure = f"It counts all threads of the user, and each role has several. Raise it: ulimit -u {FEW_PROCESSES * 8}."
    yield _limit("processes", processes, f"{processes:,}", state, cure)
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    yield _limit("locked memory", locked, format_bytes(locked), "ok")
    size = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    cure = "Checkpoints and the replay end there. Lift it: ulimit -f unlimited."
    yield _limit("file size", size, format_bytes(size), "warning" if _below(size, 2**62) else "ok", cure)
    space = resource.getrlimit(resource.RLIMIT_AS)[0]
    cure = "Torch maps more than it uses, and each role maps the whole replay. Lift it: ulimit -v unlimited."
    yield _limit(
        "address space", space, format_bytes(space), "warning" if _below(space, LITTLE_ADDRESS_SPACE) else "ok", cure
    )


def _below(limit: int, least: int) -> bool:
    return limit != resource.RLIM_INFINITY and limit < least


def _limit(name: str, limit: int, shown: str, state: State, cure: str = "") -> Fact:
    if limit == resource.RLIM_INFINITY:
        return Fact(MACHINE, name, "no limit", None)
    return Fact(MACHINE, name, f"limited to {shown}", limit, state, "" if state == "ok" else cure)


def _shared_memory() -> Fact:
    try:
        Segment.create(4096, "a segment to try")
    except FreewheelError as error:
        return Fact(MACHINE, "shared memory", f"does not work: {error}", False, "problem", "The replay lies in it.")
    return Fact(MACHINE, "shared memory", "works (memfd)", True)


def _waits() -> Fact:
    """Sleeps on a counter once in vain and once until another thread wakes it."""
    try:
        counters = Counters(1)
        sleeps = not counters.wait(0, 1, 0.001)
        waker = threading.Timer(0.02, counters.add, (0,))
        waker.start()
        is_woken = counters.wait(0, 1, WAKE_TIMEOUT_S)
        waker.join()
    except FreewheelError as error:
        return Fact(MACHINE, "waits", f"do not work: {error}", False, "problem", "Roles sleep on them.")
    if sleeps and is_woken:
        return Fact(MACHINE, "waits", "work (futex)", True)
    cure = "The kernel or its sandbox refuses futex: allow it."
    return Fact(MACHINE, "waits", "a sleeper was not woken", False, "problem", cure)


def _run_folder(folder: Path) -> Fact:
    there = next(place for place in [folder.absolute(), *folder.absolute().parents] if place.exists())
    free = shutil.disk_usage(there).free
    shown = f"{folder}: {format_bytes(free)} free"
    if not os.access(there, os.W_OK | os.X_OK):
        cure = "Call from another folder, or give --log.folder."
        return Fact(MACHINE, "run folder", f"{there} cannot be written", free, "problem", cure)
    if free < LITTLE_DISK:
        return Fact(MACHINE, "run folder", shown, free, "warning", "Checkpoints need room; see freewheel runs clean.")
    return Fact(MACHINE, "run folder", shown, free)


def _versions() -> Iterator[Fact]:
    python = f"{platform.python_version()} ({platform.python_implementation()}, {sys.platform})"
    yield Fact(SOFTWARE, "Python", python, platform.python_version())
    for name in PACKAGES:
        try:
            version = importlib.metadata.version(name)
            yield Fact(SOFTWARE, name, version, version)
        except importlib.metadata.PackageNotFoundError:
            yield Fact(SOFTWARE, name, "is not installed", None, "problem", f"pip install {name}")


def _compiler(config: Config) -> Fact:
    """The one that torch takes for compiled updates."""
    name = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    path = shutil.which(name)
    said = ""
    if path is not None:
        try:
            done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=COMPILER_TIMEOUT_S)
            said = done.stdout.partition("\n")[0].strip() if done.returncode == 0 else ""
        except (OSError, subprocess.SubprocessError):
            said = ""
    if said:
        return Fact(SOFTWARE, "C++ compiler", f"{said} ({path})", path)
    shown = f"there is no {name}" if path is None else f"{path} does not work"
    if config.learner.compile == "off":
        return Fact(SOFTWARE, "C++ compiler", f"{shown}; learner.compile=off needs none", None)
    state: State = "problem" if config.learner.compile == "on" else "warning"
    cure = f"Updates cannot be compiled and run eagerly. Install {name}, or name another in CXX."
    return Fact(SOFTWARE, "C++ compiler", shown, None, state, cure)


def _threads(config: Config) -> Fact:
    threads, cores = config.learner.threads or 1, num_cores()
    there = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    value = {"learner": threads, "environment": there}
    shown = f"{threads} in the learner (learner.threads), set for OpenMP, MKL and torch"
    if not config.learner.threads:
        shown += "; for images as many as are fastest"
    other = {name: n for name, n in there.items() if n != str(threads)}
    if other:
        shown += f"; the environment's {', '.join(f'{name}={n}' for name, n in other.items())} is replaced"
    if threads <= cores:
        return Fact(SOFTWARE, "threads", shown, value)
    cure = f"There are {cores} cores: more threads than cores stop each other. Lower --learner.threads."
    return Fact(SOFTWARE, "threads", shown, value, "warning", cure)
