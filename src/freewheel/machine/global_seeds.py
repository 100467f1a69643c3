"""The random generators that libraries share within a process: envs and networks of users may draw from them."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import numpy as np

NUMPY_SEEDS = 1 << 32

_late: list[int] = []  # the seed of torch, which is not loaded yet


def seed_globals(seed: int) -> None:
    """Seeds those of Python, numpy and, where it is loaded, torch. Every process that steps envs or learns has a seed of its own."""
    random.seed(seed)
    np.random.seed(seed % NUMPY_SEEDS)
    _late[:] = [seed]
    seed_torch()


def seed_torch() -> None:
    """With the seed that it was not there for, if it is loaded now."""
    if _late and "torch" in sys.modules:
        import torch  # waits where another thread is loading it

        with suppress(IndexError):  # that thread was first
            torch.manual_seed(_late.pop())


@contextmanager
def globals_seeded(seed: int) -> Iterator[None]:
    """Seeds them for a block of work in the user's own process, which gets them back as they were."""
    of_python, of_numpy = random.getstate(), np.random.get_state()
    with ExitStack() as stack:
        if (torch := sys.modules.get("torch")) is not None:
            # Other devices than the CPU only where they are in use: to ask for their state would start them.
            devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
            stack.enter_context(torch.random.fork_rng(devices))
        seed_globals(seed)
        try:
            yield
        finally:
            random.setstate(of_python)
            np.random.set_state(of_numpy)
