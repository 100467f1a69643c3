"""DQN in the manner of a single-file script, written for this benchmark: no project of that name is run."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from freewheel.bench.worker.dqn_settings import GAMMA, HIDDEN, LR
from freewheel.bench.worker.meter import Meter

from .plain_loop import Batch, run


def version() -> str:
    return f"torch {torch.__version__}"


def make_net() -> nn.Sequential:
    first, second = HIDDEN
    return nn.Sequential(nn.Linear(4, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU(), nn.Linear(second, 2))


def train(meter: Meter, order: dict[str, Any]) -> None:
    """As such scripts have it: Adam as it comes, and no clipping of gradients."""
    torch.manual_seed(0)
    net, target = make_net(), make_net()
    target.load_state_dict(net.state_dict())
    optimizer = torch.optim.Adam(net.parameters(), lr=LR)

    def act(obs: Tensor) -> Tensor:
        best: Tensor = net(obs).argmax(1)
        return best

    def update(batch: Batch) -> None:
        with torch.no_grad():
            goal = batch.reward + GAMMA * (1 - batch.is_terminal) * target(batch.next_obs).max(1).values
        value = net(batch.obs).gather(1, batch.action[:, None]).squeeze(1)
        loss = functional.mse_loss(value, goal)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    run(meter, order["envs"], act, update, lambda: target.load_state_dict(net.state_dict()) and None)
