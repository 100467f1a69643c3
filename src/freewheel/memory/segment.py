"""A block of shared memory without a name, checked against what the machine allows before it is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing import context, reduction
from pathlib import Path
from typing import Any, ClassVar

from freewheel import _core
from freewheel.errors import ConfigError, ReplayError

# The kernel, other processes and our own heaps need some memory: on a machine without any left the kernel kills a process.
RESERVE_SHARE = 0.05
NO_LIMIT = 2**62


class Segment:
    """Shared memory that children get by pickling it into their `Process` arguments.

    It is gone when the last process that maps it is: nothing is left behind, however they end.
    """

    def __init__(self, core: _core.Segment) -> None:
        self.core = core

    @classmethod
    def create(cls, num_bytes: int, name: str = "freewheel", cure: str = "Ask for less.") -> Segment:
        """Makes a segment, or says how much is needed, how much there is, and the cure."""
        if num_bytes <= 0:
            raise ConfigError(f"a segment of {num_bytes} bytes was asked for; it must have at least 1.")
        allowed, source = allowed_bytes()
        if num_bytes > allowed:
            raise ConfigError(
                f"{name} needs {format_bytes(num_bytes)}, {source} allows {format_bytes(allowed)}. {cure}"
            )
        try:
            return cls(_core.Segment.create(num_bytes, name))
        except ReplayError as error:
            raise ConfigError(f"{name} needs {format_bytes(num_bytes)}: {error} {cure}") from error

    @property
    def num_bytes(self) -> int:
        return self.core.num_bytes

    def __reduce__(self) -> tuple[Callable[..., Segment], tuple[Any, ...]]:
        if context.get_spawning_popen() is None:
            raise ReplayError(
                "shared memory can only be pickled into the arguments of a multiprocessing Process "
                "(forkserver or spawn), which hands its descriptor over."
            )
        return _attach, (reduction.DupFd(self.core.fd),)


def _attach(duplicate: Any) -> Segment:
    return Segment(_core.Segment.attach(duplicate.detach()))


class Shared:
    """Something in segments. Hand it to child processes as a `Process` argument (forkserver or spawn).

    They get the attributes that `handed` names, and open the memory themselves.
    """

    handed: ClassVar[tuple[str, ...]]

    def _open(self, format_at: int | None = None) -> None:
        """Maps the memory; `format_at` is given once, by the process that makes it."""
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.handed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._open()


def allowed_bytes(root: Path = Path("/")) -> tuple[int, str]:
    """Bytes that may still be taken, and what sets that limit: the machine or a control group above this process."""
    limits = [(_machine_bytes(root), "this machine")]
    limits += [(_left_in(group), "this container") for group in control_groups(root, "memory")]
    left, source = min(limits, key=lambda limit: limit[0])
    return max(int(left * (1 - RESERVE_SHARE)), 0), source


def _machine_bytes(root: Path) -> int:
    try:
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # no /proc (macOS): the allocation itself decides
    return NO_LIMIT


def control_groups(root: Path, controller: str, *more_folders: str) -> Iterator[Path]:
    """Our control group and those above it, in both versions of the interface; version 1 may have several folders."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        here = Path(path.lstrip("/"))
        for folder in (controller, *more_folders) if controllers else ("",):
            yield from (root / "sys/fs/cgroup" / folder / group for group in [here, *here.parents])


def _left_in(group: Path) -> int:
    """Bytes that a control group still allows; without a limit more than any machine has."""
    for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
        with suppress(OSError, ValueError):  # it is the other version, or the limit is "max"
            left = int((group / limit).read_text()) - int((group / used).read_text())
            stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            # The page cache counts as used, but the kernel gives it back before it refuses memory.
            return left + int(stat.get("total_inactive_file", stat.get("inactive_file", 0)))
    return NO_LIMIT


def format_bytes(count: float) -> str:
    """41,200,000,000 as `41.2 GB`."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
