"""Running mean and variance, by which observations and rewards are normalised."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from freewheel.contracts import Array
from freewheel.memory.rollout import Collected

BOUND = 10.0
EPS = 1e-8


class Running:
    """Mean and variance of all rows so far, in float64: merging new rows stays exact in long runs."""

    def __init__(self, size: int) -> None:
        self.count = torch.zeros((), dtype=torch.float64)
        self.mean = torch.zeros(size, dtype=torch.float64)
        self.var = torch.ones(size, dtype=torch.float64)

    def add(self, rows: Tensor) -> None:
        """Rows [n, size]. A row that is not finite is left out: it would stay in the statistics for good."""
        rows = rows.double()
        if not (is_finite := rows.isfinite().all(1)).all():
            rows = rows[is_finite]
        many = len(rows)
        if not many:
            return
        mean, var = rows.mean(0), rows.var(0, unbiased=False)
        total = self.count + many
        away = mean - self.mean
        # Before the first rows the variance is a placeholder: its share is 0.
        self.var.copy_((self.var * self.count + var * many + away.square() * self.count * many / total) / total)
        self.mean.add_(away * (many / total))
        self.count.copy_(total)


class RewardScale:
    """Divides rewards by the standard deviation of the discounted returns so far."""

    def __init__(self, num_lanes: int) -> None:
        self.stats = Running(1)
        self.gathered = np.zeros(num_lanes, np.float32)  # return so far of each lane's running episode

    def __call__(self, rows: Collected, gathered: Array) -> Array:
        """The rewards of a rollout, whose returns so far `gathered` join the statistics first."""
        self.stats.add(torch.from_numpy(gathered[rows.kept])[:, None])
        has_any = rows.kept.any(1)
        newest = rows.kept.shape[1] - 1 - rows.kept[:, ::-1].argmax(1)
        self.gathered[has_any] = gathered[has_any, newest[has_any]]
        scale = np.float32(1 / np.sqrt(float(self.stats.var[0]) + EPS))
        scaled: Array = np.clip(rows.reward * scale, -BOUND, BOUND)
        return scaled

    def tensors(self) -> dict[str, Tensor]:
        return {**vars(self.stats), "gathered": torch.from_numpy(self.gathered)}
