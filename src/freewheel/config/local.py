"""Settings of the local runtime."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class LocalConfig:
    """Roles as processes of their own."""

    actors: int = 0
    """Number of actor processes; 0 chooses by the number of cores."""

    free: bool = False
    """Never hold actors back, even when training cannot keep up with the ratio."""

    slack_steps: int = 0
    """Steps that actors may run ahead of the replay ratio; 0 chooses."""

    prefetch: int = 4
    """Batches to prepare ahead while the learner trains."""

    publish_every_updates: int = 8
    """Publish weights to the actors every this many updates."""

    publish_every_s: float = 0.1
    """Publish weights at least this often, in seconds."""

    act_precision: Literal["auto", "fp32", "bf16", "int8"] = "auto"
    """Precision of the actors' networks; int8 covers linear layers only. The run reports the speed and agreement of anything but fp32. auto: bf16 for images, if the learner uses it and it is faster."""

    act_device: str = "cpu"
    """Device of the actors: cpu, cuda (the least loaded CUDA device) or a device such as cuda:1."""

    target_process: bool = True
    """Compute target values of the next batches in a separate process, once updates are compiled and if a core is free."""

    pin: Literal["auto", "on", "off"] = "auto"
    """Pin the learner to its own core. auto: pin it when other processes delay it, and undo that if it does not help."""

    step_timeout_s: float = 60.0
    """Replace an actor whose env takes longer than this for one step."""

    stall_s: float = 30.0
    """Replace a process that shows no sign of life for this long."""

    restarts: int = 3
    """Restarts allowed per process within ten minutes; one more ends the run."""

    profile: bool = False
    """Write a sampling profile of each process into the run folder."""
