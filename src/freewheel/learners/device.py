"""Where the learner works: the device asked for, or the best there is."""

from __future__ import annotations

import torch

from freewheel.errors import ConfigError


def present() -> list[str]:
    """The kinds of device of this machine, the fastest first."""
    found = []
    if torch.cuda.is_available():
        found.append("cuda")
    if torch.backends.mps.is_available():
        found.append("mps")
    return [*found, "cpu"]


def pick_device(asked: str) -> torch.device:
    """`asked` is auto, cpu, cuda or mps."""
    have = present()
    kind = have[0] if asked == "auto" else asked
    if kind not in have:
        raise ConfigError(
            f"learner.device={asked} is not there; this machine has {', '.join(have)}. "
            f"Choose one of them, or auto, which takes {have[0]}."
        )
    if kind == "cuda":
        # float32 products on tensor cores, and the fastest convolution for shapes that never change.
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = True
    return torch.device(kind)
