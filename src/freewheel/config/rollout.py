"""Settings of algorithms that learn from rollouts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class RolloutConfig:
    """What is collected, and learned from once."""

    rows: int = 128
    """Rollout length: rows per lane. A rollout has rows x lanes rows in total, from whichever lanes are fastest."""

    max_lag: int = 4
    """Discard and count rows whose policy is more than this many rollouts old. appo: actors stop at this lag instead (default 1)."""

    collect: Literal["rows", "episodes"] = "rows"
    """rows: a rollout is complete when it has its rows, wherever episodes stand; episodes: when whole episodes have that many, and it has all that ended."""

    reuse: int = 0
    """appo: number of earlier rollouts to reuse with each new one, corrected by V-trace."""
