"""What an update frees stays with the process, for the next one to take."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

# Names and numbers of glibc's malloc.h.
TRIM_THRESHOLD, TOP_PAD, MMAP_MAX = -1, -2, -4
# By default glibc gives large blocks, and what is free at the end of its heap, back to the system and asks for them again in the
# next update, each page with a fault: 2,000 to 4,000 of them in a Nature update of 32 rows (7 of 54 ms), 800,000 in one of 1,024
# rows of workload B (1.3 of 5.4 s). With these there are hardly any, and the most that was held at a time is the same.
KEPT_BYTES, PAD_BYTES, NO_BLOCKS = 2**31 - 1, 64 << 20, 0
# Who has set one of these has decided.
VARIABLES = (
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_TOP_PAD_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_MMAP_MAX_",
    "GLIBC_TUNABLES",
)


def keep_memory(find: Callable[[], ctypes.CDLL] = lambda: ctypes.CDLL(None)) -> bool:
    """For the calling process from now on, which should be one of our own; False where the C library is another one, or somebody has decided."""
    if any(name in os.environ for name in VARIABLES):
        return False
    try:
        mallopt = find().mallopt
    except (AttributeError, OSError):
        return False
    given = {TRIM_THRESHOLD: KEPT_BYTES, TOP_PAD: PAD_BYTES, MMAP_MAX: NO_BLOCKS}
    return all(mallopt(option, value) == 1 for option, value in given.items())
