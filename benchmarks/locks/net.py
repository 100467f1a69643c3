"""The network that workers and reader share in `benchmarks locks`, with stamps that show whether a read mixed two versions of it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

SIZES = (8, 128, 128, 4)
BATCH = 128
ROWS = 10_000
ACT_ROWS = 8
LR, BETA1, BETA2, EPS, GAMMA = 1e-4, 0.9, 0.999, 1e-8, 0.99


def lengths() -> list[int]:
    """Numbers in each layer's block: a stamp, weights, bias, a stamp."""
    return [num_in * num_out + num_out + 2 for num_in, num_out in pairwise(SIZES)]


def first_weights() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    blocks = []
    for num_in, num_out in pairwise(SIZES):
        bound = num_in**-0.5
        numbers = (torch.rand(num_in * num_out + num_out, generator=generator) * 2 - 1) * bound
        blocks.append(torch.cat([torch.zeros(1), numbers, torch.zeros(1)]))
    return torch.cat(blocks)


class Net:
    """Layers over one flat vector. Every step adds 1 to all stamps, in the same write that moves the layer's weights."""

    def __init__(self, flat: Tensor) -> None:
        self.flat = flat
        # .data counts its changes apart: torch would refuse a backward whose weights somebody stepped meanwhile,
        # which is what some of the designs do and what is counted here.
        self.blocks = [block.data.requires_grad_() for block in torch.split(flat, lengths())]
        ends = torch.tensor(lengths()).cumsum(0)
        self._stamps = torch.cat([ends - torch.tensor(lengths()), ends - 1])

    def forward(self, x: Tensor) -> Tensor:
        last = len(self.blocks) - 1
        for i, (block, (num_in, num_out)) in enumerate(zip(self.blocks, pairwise(SIZES), strict=True)):
            _, weight, bias, _ = torch.split(block, [1, num_in * num_out, num_out, 1])
            x = functional.linear(x, weight.view(num_out, num_in), bias)
            x = x if i == last else functional.relu(x)
        return x

    def versions(self) -> Tensor:
        """One number per stamp: all the same unless a step is under way."""
        return self.flat[self._stamps]

    def version(self) -> int:
        """Of the stamp that is written last."""
        return int(self.flat[-1])

    def act(self, obs: Tensor) -> tuple[Tensor, bool]:
        """The best actions, and whether the weights were of two versions while they were read."""
        with torch.no_grad():
            before = self.versions()
            actions = self.forward(obs).argmax(1)
            after = self.versions()
            is_torn = bool((torch.cat([before, after]) != before[0]).any())
        return actions, is_torn


class Adam:
    """Written out, layer by layer, so that a stamp travels with its weights."""

    def __init__(self, flat: Tensor) -> None:
        self.blocks = list(torch.split(flat.detach(), lengths()))
        self.mean, self.square = ([torch.zeros_like(block) for block in self.blocks] for _ in range(2))
        self.stamps = [torch.zeros_like(block) for block in self.blocks]
        for stamp in self.stamps:
            stamp[0] = stamp[-1] = -1.0
        self.updates = 0

    def step(self, gradients: tuple[Tensor, ...] | list[Tensor]) -> None:
        self.updates += 1
        spread = (1 - BETA2**self.updates) ** 0.5
        rate = LR * spread / (1 - BETA1**self.updates)
        with torch.no_grad():
            for block, mean, square, stamp, gradient in zip(
                self.blocks, self.mean, self.square, self.stamps, gradients, strict=True
            ):
                mean.lerp_(gradient, 1 - BETA1)
                square.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
                block.sub_(torch.addcdiv(stamp, mean, square.sqrt().add_(EPS * spread), value=rate))


@dataclass
class Batch:
    obs: Tensor
    action: Tensor
    reward: Tensor
    next_obs: Tensor


class Rows:
    """What is trained on; each worker has its own, so that sampling shares nothing."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.all = Batch(
            torch.randn(ROWS, SIZES[0], generator=self.generator),
            torch.randint(SIZES[-1], (ROWS,), generator=self.generator),
            torch.randn(ROWS, generator=self.generator),
            torch.randn(ROWS, SIZES[0], generator=self.generator),
        )

    def sample(self, rows: int = BATCH) -> Batch:
        at = torch.randint(ROWS, (rows,), generator=self.generator)
        every = self.all
        return Batch(every.obs[at], every.action[at], every.reward[at], every.next_obs[at])


def loss_of(net: Net, target: Net, batch: Batch) -> Tensor:
    with torch.no_grad():
        goal = batch.reward + GAMMA * target.forward(batch.next_obs).max(1).values
    value = net.forward(batch.obs).gather(1, batch.action[:, None]).squeeze(1)
    return functional.huber_loss(value, goal)


def gradients_of(net: Net, loss: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, net.blocks)
