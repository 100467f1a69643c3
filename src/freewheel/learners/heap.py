"""What an update frees stays with the process, for the next one to take."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

# Names and numbers of glibc's malloc.h.
TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3
# By default glibc gives what is free at the end of its heap back to the system after each update and asks for it again in the next:
# an eager Nature update of 32 rows met 2,700 page faults, and 4 with these. Larger blocks than 32 MiB it never keeps.
KEPT_BYTES, PAD_BYTES, LARGEST_BYTES = 512 << 20, 64 << 20, 32 << 20
# Who has set one of these has decided.
VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_memory(find: Callable[[], ctypes.CDLL] = lambda: ctypes.CDLL(None)) -> bool:
    """For the calling process from now on; False where the C library is another one, or somebody has decided."""
    if any(name in os.environ for name in VARIABLES):
        return False
    try:
        mallopt = find().mallopt
    except (AttributeError, OSError):
        return False
    given = {TRIM_THRESHOLD: KEPT_BYTES, TOP_PAD: PAD_BYTES, MMAP_THRESHOLD: LARGEST_BYTES}
    return all(mallopt(option, value) == 1 for option, value in given.items())
