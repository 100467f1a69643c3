"""IQN in turn, as it is usually written in torch: the baseline of our own IQN, at the same sizes and ratio."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from freewheel.bench.worker.dqn_settings import ACT_TAUS, COSINES, GAMMA, HIDDEN, HUBER, LR, TARGET_TAUS, TAUS
from freewheel.bench.worker.meter import Meter

from .plain_loop import Batch, run


class Net(nn.Module):
    """Observations [B, 4] and fractions [B, N] to quantiles [B, N, 2]."""

    def __init__(self) -> None:
        super().__init__()
        first, second = HIDDEN
        self.body = nn.Sequential(nn.Linear(4, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU())
        self.of_taus = nn.Sequential(nn.Linear(COSINES, second), nn.ReLU())
        self.head = nn.Linear(second, 2)
        self.register_buffer("waves", torch.arange(COSINES) * math.pi)

    def forward(self, obs: Tensor, taus: Tensor) -> Tensor:
        waves = self.get_buffer("waves")
        weighed = self.body(obs).unsqueeze(1) * self.of_taus(torch.cos(taus.unsqueeze(2) * waves))
        out: Tensor = self.head(weighed)
        return out


def version() -> str:
    return f"torch {torch.__version__}"


def train(meter: Meter, order: dict[str, Any]) -> None:
    torch.manual_seed(0)
    net, target = Net(), Net()
    target.load_state_dict(net.state_dict())
    optimizer = torch.optim.Adam(net.parameters(), lr=LR)

    def act(obs: Tensor) -> Tensor:
        return net(obs, torch.rand(len(obs), ACT_TAUS)).mean(1).argmax(1)  # type: ignore[no-any-return]

    def update(batch: Batch) -> None:
        loss = loss_of(net, target, batch)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    run(meter, order["envs"], act, update, lambda: target.load_state_dict(net.state_dict()) and None)


def loss_of(net: Net, target: Net, batch: Batch) -> Tensor:
    """The target network chooses by `ACT_TAUS` quantiles and values by `TARGET_TAUS` others."""
    rows = len(batch.action)
    with torch.no_grad():
        best = target(batch.next_obs, torch.rand(rows, ACT_TAUS)).mean(1).argmax(1)
        later = of_actions(target(batch.next_obs, torch.rand(rows, TARGET_TAUS)), best)
        goal = batch.reward[:, None] + GAMMA * (1 - batch.is_terminal[:, None]) * later
    taus = torch.rand(rows, TAUS)
    online = of_actions(net(batch.obs, taus), batch.action)
    error = goal[:, None, :] - online[:, :, None]
    huber = functional.huber_loss(
        online[:, :, None].expand_as(error), goal[:, None, :].expand_as(error), reduction="none", delta=HUBER
    )
    side = (taus[:, :, None] - (error.detach() < 0).float()).abs()
    return (side * huber / HUBER).mean()


def of_actions(quantiles: Tensor, actions: Tensor) -> Tensor:
    """[B, N, A] and [B] to [B, N]."""
    index = actions[:, None, None].expand(-1, quantiles.shape[1], 1)
    return quantiles.gather(2, index).squeeze(2)
