"""Thread limits, set before the libraries that read them are loaded."""

from __future__ import annotations

import os
import sys

from freewheel.errors import ConfigError

# Each is read once, when its library starts its pool.
VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
# Threads that spin while they wait for each other, as they do by default, take the core of whoever shares it with them: an update
# on two threads beside other work took 4 to 9 times as long. Those that sleep at once pay a wake-up for every small operation: a
# compiled Nature update on two idle cores took 23.1 ms so, 16.1 ms after 1,000 looks, and beside a busy program 36 ms either way.
WAITING = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "1000"}


def limit_threads(num_threads: int) -> None:
    """Limits the numeric libraries of this process and of the children it starts.

    Call it first: a pool that already runs keeps its threads. Torch, if it is loaded, is told all the same.
    """
    if num_threads < 1:
        raise ConfigError(f"num_threads={num_threads} must be at least 1.")
    os.environ.update(dict.fromkeys(VARIABLES, str(num_threads)))
    if "torch" not in sys.modules:
        wait_passively()
    else:
        sys.modules["torch"].set_num_threads(num_threads)


def wait_passively() -> None:
    """Lets the threads of libraries that are loaded from now on sleep when they wait, unless the user has said how."""
    if "OMP_WAIT_POLICY" not in os.environ:
        for name, value in WAITING.items():
            os.environ.setdefault(name, value)
