"""The DQN update as it is usually written in torch: a module, its copy as target, an optimiser of torch's own."""

import copy
import itertools
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from freewheel.bench.worker.update_data import (
    ADAM_EPS,
    BETA1,
    BETA2,
    CLIP_NORM,
    HUBER,
    LR,
    NUM_BATCHES,
    SIZES,
    TARGET_EVERY,
    batches,
    first_weights,
)

# `compile_module` compiles the same function, module and optimiser together, by torch.compile as it comes.
WAYS = ("eager", "eager_fused", "compile_module")


def make_call(way: str, rows: int) -> Callable[[], Tensor]:
    """A call makes one update and gives its loss."""
    net = make_net()
    target = copy.deepcopy(net).requires_grad_(False)
    params = list(net.parameters())
    fused = True if way == "eager_fused" else None
    optimizer = torch.optim.Adam(params, lr=LR, betas=(BETA1, BETA2), eps=ADAM_EPS, fused=fused)
    data = {name: torch.from_numpy(values) for name, values in batches(rows).items()}
    take = itertools.cycle([{name: values[i] for name, values in data.items()} for i in range(NUM_BATCHES)])

    def update(batch: Mapping[str, Tensor]) -> Tensor:
        with torch.no_grad():
            goal = batch["reward"] + batch["discount"] * target(batch["next_obs"]).max(1).values
        value = net(batch["obs"]).gather(1, batch["action"][:, None]).squeeze(1)
        loss = functional.huber_loss(value, goal, delta=HUBER)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(params, CLIP_NORM)
        optimizer.step()
        return loss.detach()

    run = torch.compile(update, dynamic=False) if way == "compile_module" else update
    done = 0

    def call() -> Tensor:
        nonlocal done
        loss = run(next(take))
        done += 1
        if done % TARGET_EVERY == 0:
            target.load_state_dict(net.state_dict())
        return loss

    return call


def make_net() -> nn.Sequential:
    layers: list[nn.Module] = []
    for num_in, num_out in itertools.pairwise(SIZES):
        layers += [nn.Linear(num_in, num_out), nn.ReLU()]
    net = nn.Sequential(*layers[:-1])
    set_weights(net)
    return net


def set_weights(net: nn.Module) -> None:
    """The first weights that everybody starts from."""
    with torch.no_grad():
        for param, values in zip(net.parameters(), first_weights(), strict=True):
            param.copy_(torch.from_numpy(values))
