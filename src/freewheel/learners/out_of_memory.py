"""Too little memory for a batch: into how many parts it is split."""

from __future__ import annotations

from freewheel.errors import ConfigError
from freewheel.machine.limits import is_shortage as is_shortage


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
