"""One update of workload B's network as a plain script makes it: modules, torch's AdamW, gradients accumulated part by part."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from .pixels_nets import mario, same_numbers
from .pixels_settings import (
    GAMMA,
    MARIO_ACTIONS,
    MARIO_CLIP,
    MARIO_DECAY,
    MARIO_LR,
    MARIO_PARTS,
    MARIO_SIZE,
    MARIO_STACK,
)

Batch = dict[str, Tensor]


def make_batch(rows: int) -> Batch:
    """Frames of noise; next observations are one frame later, over the same memory, as a replay gives them."""
    generator = torch.Generator().manual_seed(0)
    shape = (rows, MARIO_STACK + 1, MARIO_SIZE, MARIO_SIZE)
    frames = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    return {
        "obs": frames[:, :MARIO_STACK],
        "action": torch.randint(0, MARIO_ACTIONS, (rows,), generator=generator),
        "next_obs": frames[:, 1:],
        "reward": torch.randn(rows, generator=generator),
        "discount": torch.full((rows,), GAMMA),
        "weight": torch.rand(rows, generator=generator) + 0.5,
    }


def make_update(batch: Batch) -> Callable[[], Tensor]:
    """A function that makes one update and gives its loss."""
    net = mario()
    same_numbers(net)
    target = copy.deepcopy(net).eval()
    optimizer = torch.optim.AdamW(net.parameters(), lr=MARIO_LR, weight_decay=MARIO_DECAY)
    rows = len(batch["reward"]) // MARIO_PARTS

    def update() -> Tensor:
        optimizer.zero_grad()
        total = torch.zeros(())
        for first in range(0, rows * MARIO_PARTS, rows):
            part = {name: column[first : first + rows] for name, column in batch.items()}
            loss = loss_of(net, target, part) / MARIO_PARTS
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        nn.utils.clip_grad_norm_(net.parameters(), MARIO_CLIP)
        optimizer.step()
        return total

    return update


def loss_of(net: nn.Module, target: nn.Module, part: Batch) -> Tensor:
    """Double DQN; statistics are taken from the rows that are trained on alone."""
    with torch.no_grad():
        net.eval()
        best = net(part["next_obs"]).argmax(1, keepdim=True)
        net.train()
        goal = part["reward"] + part["discount"] * target(part["next_obs"]).gather(1, best)[:, 0]
    value = net(part["obs"]).gather(1, part["action"][:, None])[:, 0]
    each = functional.smooth_l1_loss(value, goal, reduction="none")
    return (each * part["weight"]).mean()
