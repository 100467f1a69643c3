"""Settings of what a run keeps on disk: checkpoints and logs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from freewheel.config.ranges import (
    MOST_S,
    Natural,
    Positive,
    Range,
)


@dataclass(frozen=True)
class CheckpointConfig:
    """What is saved, and when."""

    every_steps: Natural = 25_000
    """Save a checkpoint every this many steps; 0 saves only at the end."""

    keep: Positive = 3
    """Number of checkpoints to keep."""

    replay: bool = False
    """Save the replay buffer too. A resumed sequential run then equals one that was never stopped."""

    spare: str = ""
    """Folder for the last checkpoint if the run's folder cannot take it; by default the folder for temporary files."""


@dataclass(frozen=True)
class LogConfig:
    """Where the run is logged."""

    folder: str = "runs"
    """Folder that holds the run folders."""

    tensorboard: bool = True
    """Write TensorBoard files."""

    csv: bool = True
    """Write episodes.csv and metrics.csv."""

    every_s: Annotated[float, Range(0, MOST_S)] = 1.0
    """Log metrics every this many seconds."""

    thin_after: Natural = 10_000
    """Thin out the logs of long runs: keep one of every (episodes so far / this) episodes, and wait at least (seconds so far / this) between two rows of metrics. 0 logs everything."""

    clip_every_steps: Natural = 0
    """Film a greedy episode for TensorBoard, at the first checkpoint after this many steps, after 40 films more rarely (thin_after); 0 films none."""

    sinks: tuple[str, ...] = ()
    """Your own logs, each as module:name: a function that takes the run folder and the settings and returns a Log."""
