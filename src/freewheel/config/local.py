"""Settings of the local runtime."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class LocalConfig:
    """Roles as processes of their own."""

    actors: int = 0
    """Actor processes, which share the lanes; 0 chooses by the cores."""

    free: bool = False
    """Never hold actors back, even when training cannot keep up with the ratio."""

    slack_steps: int = 0
    """Steps that actors may be ahead of the ratio before they are held back; 0 chooses."""

    prefetch: int = 4
    """Batches made ready while the learner trains."""

    publish_every_updates: int = 8
    """Updates between two versions of the weights for the actors."""

    publish_every_s: float = 0.1
    """Seconds after which a version is published although fewer updates were made."""

    act_precision: Literal["auto", "fp32", "bf16", "int8"] = "auto"
    """Numbers that actors work with; int8 is for linear maps alone. What is not fp32 is told with its speed and how often it chooses the same. auto: bf16 for pictures where the learner has it and it is faster."""

    act_device: str = "cpu"
    """Where actors compute: cpu, cuda (each on the CUDA device with the least to do) or one such as cuda:1."""

    ahead: bool = True
    """A process of its own shows the next batches to the target network, once updates are compiled; where the learner's threads leave a core."""

    pin: Literal["auto", "on", "off"] = "auto"
    """Whether the learner has a core to itself: auto gives it one where others hold it up, and takes it back if that does not help."""

    step_timeout_s: float = 60.0
    """An actor whose env takes longer for one step is replaced."""

    stall_s: float = 30.0
    """A role that shows no sign of life for so long is replaced."""

    restarts: int = 3
    """Times within ten minutes that a role is started anew; one more ends the run."""

    profile: bool = False
    """Sample where each role spends its time, into the run's folder."""
