"""The course of the learning rate: a function of how many updates are done, and of how far the run is."""

from __future__ import annotations

import math

from freewheel.config import LearnerConfig


def lr_at(config: LearnerConfig, updates: int, share_done: float) -> float:
    """`share_done` (0 to 1) is the part of the run's steps that is over: the end is met whatever the ratio makes of it."""
    rising = min((updates + 1) / config.lr_warmup_updates, 1.0) if config.lr_warmup_updates else 1.0
    if config.lr_schedule == "linear":
        course = 1.0 - share_done
    elif config.lr_schedule == "cosine":
        course = _cosine(share_done)
    elif config.lr_schedule == "restarts":
        since = max(updates - config.lr_warmup_updates, 0) % config.lr_restart_updates
        course = _cosine(since / config.lr_restart_updates)
    else:
        return config.lr * rising
    return config.lr * rising * (config.lr_end + (1.0 - config.lr_end) * course)


def _cosine(share: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * min(share, 1.0)))
