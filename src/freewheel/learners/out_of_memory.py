"""Too little memory for a batch: how it is known, and into how many parts the batch is split."""

from __future__ import annotations

import torch

from freewheel.errors import ConfigError

# What torch's allocator for the CPU says; the one for CUDA has an error of its own.
SAID_BY_CPU = ("DefaultCPUAllocator", "can't allocate memory", "not enough memory")


def is_shortage(error: BaseException) -> bool:
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return any(said in str(error) for said in SAID_BY_CPU)


def more_parts(num_parts: int, num_rows: int, error: BaseException) -> int:
    """Twice as many; none may be empty."""
    if num_parts >= num_rows:
        raise ConfigError(
            f"there is not enough memory even for one row of a batch of {num_rows} at a time: {first_line(error)}. Use a "
            "smaller network or smaller images, or keep fewer replay.rows."
        ) from error
    return min(2 * num_parts, num_rows)


def first_line(error: BaseException) -> str:
    return next((line.strip().rstrip(".") for line in str(error).splitlines() if line.strip()), type(error).__name__)
