"""The two networks whose weights are moved: of the sizes that small and pixel agents have."""

import torch
from torch import nn


def make_net(size: str) -> nn.Module:
    """`0.1M`: an MLP of 102,126 parameters; `1.7M`: the CNN of the Nature DQN paper, 1,687,206."""
    torch.manual_seed(0)
    if size == "0.1M":
        return nn.Sequential(nn.Linear(176, 256), nn.ReLU(), nn.Linear(256, 216), nn.ReLU(), nn.Linear(216, 6))
    if size == "1.7M":
        return nn.Sequential(
            *(
                nn.Conv2d(4, 32, 8, 4),
                nn.ReLU(),
                nn.Conv2d(32, 64, 4, 2),
                nn.ReLU(),
                nn.Conv2d(64, 64, 3, 1),
                nn.ReLU(),
            ),
            *(nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 6)),
        )
    raise ValueError(f"there is no network of size {size!r}")
