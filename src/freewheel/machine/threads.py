"""Thread limits and other environment variables, which must be set before the libraries that read them are loaded."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from freewheel.errors import ConfigError

# Each library reads its variable once, when it starts its threads.
VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
# By default threads spin while they wait for each other, and block others that share their core: an update on two threads beside
# other work took 4 to 9 times as long. Threads that sleep at once pay a wake-up for every small operation: a compiled Nature update
# on two idle cores took 23.1 ms; with 1,000 spins before the sleep 16.1 ms; beside a busy program 36 ms either way.
WAITING = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "1000"}


def limit_threads(num_threads: int) -> None:
    """Limits the numeric libraries of this process and of the children it starts.

    Call it first: a library that runs already keeps its threads, except torch.
    """
    if num_threads < 1:
        raise ConfigError(f"num_threads={num_threads} must be at least 1.")
    os.environ.update(dict.fromkeys(VARIABLES, str(num_threads)))
    if "torch" not in sys.modules:
        wait_passively()
    else:
        sys.modules["torch"].set_num_threads(num_threads)


def wait_passively() -> None:
    """Makes the threads of libraries loaded later sleep when they wait, unless the user has set OMP_WAIT_POLICY."""
    if "OMP_WAIT_POLICY" not in os.environ:
        for name, value in WAITING.items():
            os.environ.setdefault(name, value)


@contextmanager
def environment_kept(*names: str) -> Iterator[None]:
    """After the block these variables are as they were before it."""
    before = {name: os.environ.get(name) for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
