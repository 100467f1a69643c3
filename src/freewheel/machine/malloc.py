"""Memory that an update frees stays with the process, for the next update."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

# Options of glibc's malloc.h.
TRIM_THRESHOLD, TOP_PAD, MMAP_MAX = -1, -2, -4
# By default glibc returns large blocks and the free end of its heap to the system, and the next update asks for them again with one
# page fault per page: 2,000 to 4,000 in a Nature update of 32 rows (7 of 54 ms), 800,000 in one of 1,024 rows of workload B (1.3 of
# 5.4 s). With these values there are hardly any, and the peak memory is the same.
KEPT_BYTES, PAD_BYTES, NO_BLOCKS = 2**31 - 1, 64 << 20, 0
# If the user has set one of these, nothing is changed.
VARIABLES = (
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_TOP_PAD_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_MMAP_MAX_",
    "GLIBC_TUNABLES",
)


def keep_memory(find: Callable[[], ctypes.CDLL] = lambda: ctypes.CDLL(None)) -> bool:
    """For this process, which should be one of ours. False with another C library, or if the user has set `VARIABLES`."""
    if any(name in os.environ for name in VARIABLES):
        return False
    try:
        mallopt = find().mallopt
    except (AttributeError, OSError):
        return False
    given = {TRIM_THRESHOLD: KEPT_BYTES, TOP_PAD: PAD_BYTES, MMAP_MAX: NO_BLOCKS}
    return all(mallopt(option, value) == 1 for option, value in given.items())
