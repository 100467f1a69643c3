"""Updates of a small network, for tests of the machine's side of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from freewheel.algos.make import make_algo
from freewheel.config import LearnerConfig, NetConfig, QConfig, find_algo
from freewheel.contracts import Spaces
from freewheel.learners.update import Update

SPACES = Spaces(spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(2), 1)
ROWS = 16


def make(
    learner: LearnerConfig | None = None, q: QConfig | None = None, algo: str = "dqn", norm: Any = "none", **more: Any
) -> Update:
    config = find_algo(algo).Settings(env="none", algo=algo)
    net = NetConfig(hidden=(16, 16), norm=norm)
    config = replace(config, net=net, q=q or QConfig(), learner=learner or LearnerConfig())
    return Update(make_algo(config, SPACES), config.learner, **more)


def rows(seed: int, count: int = ROWS) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "obs": torch.randn(count, 4, generator=generator),
        "next_obs": torch.randn(count, 4, generator=generator),
        "action": torch.randint(0, 2, (count,), generator=generator),
        "reward": torch.randn(count, generator=generator),
        "discount": torch.full((count,), 0.99),
        "weight": torch.rand(count, generator=generator) + 0.5,
    }
