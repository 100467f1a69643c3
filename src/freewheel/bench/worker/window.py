"""How one figure is taken: the same code for ours and for every peer, so that no side has its own clock."""

import ctypes
import os
import time
from collections.abc import Callable
from typing import Any

Call = Callable[[], Any]

# The clock is read once per chunk of calls. At 0.2 ms a chunk, reading it costs nothing even
# where one call takes a microsecond, and a window is at most one chunk longer than asked for.
CHUNK_S = 0.0002

# Before the window: the caches hold another process's data, and the first call of a size takes fresh memory.
WARM_SHARE = 0.1
WARM_CALLS = 2

MALLOPT_TRIM_THRESHOLD = -1
MALLOPT_MMAP_THRESHOLD = -3


def measure_us(call: Call, seconds: float) -> float:
    """Microseconds per call, averaged over a window of `seconds` after a short warm-up."""
    clock = time.perf_counter
    num_calls, start = 0, clock()
    while True:
        call()
        num_calls += 1
        now = clock()
        if now - start >= WARM_SHARE * seconds and num_calls >= WARM_CALLS:
            break
    chunk = max(1, int(CHUNK_S * num_calls / (now - start)))
    num_calls, start = 0, clock()
    while True:
        for _ in range(chunk):
            call()
        num_calls += chunk
        now = clock()
        if now - start >= seconds:
            return (now - start) / num_calls * 1e6


def keep_freed_memory() -> None:
    """Tell glibc to keep freed batches for the next call instead of giving them back to the kernel.

    By default its thresholds move with the history of the heap: the same cpprb batch of 32 stacked frames
    took 290 us in one process and 1,300 us in the next; with kept memory always 250-300 us. That is the
    better end for every peer, and it repeats.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return  # not glibc: its allocator decides by itself
    mallopt(MALLOPT_MMAP_THRESHOLD, 32 << 20)  # the largest value glibc takes
    mallopt(MALLOPT_TRIM_THRESHOLD, 1 << 30)


def resident_bytes() -> int:
    """Memory of this process that is really there, shared mappings included; 0 where /proc is missing."""
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
