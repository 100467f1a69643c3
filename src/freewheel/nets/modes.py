"""Finds the layer that makes a network random, or another one in training mode than in evaluation mode."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

Run = Callable[[nn.Module], object]  # passes the same observations through a network
Outputs = dict[str, list[Tensor]]  # by the name of the layer, in the order in which the layers are done


def random_layer(net: nn.Module, run: Run) -> str | None:
    """The innermost layer that gives something else each time, in training mode."""
    return _unlike(net, _outputs(net, run, True, seed=0), _outputs(net, run, True, seed=1))


def mode_layer(net: nn.Module, run: Run) -> str | None:
    """The innermost layer that gives something else in training mode than in evaluation mode."""
    return _unlike(net, _outputs(net, run, True, seed=0), _outputs(net, run, False, seed=0))


def _outputs(net: nn.Module, run: Run, is_training: bool, seed: int) -> Outputs:
    """Of a copy: statistics of the network stay as they were."""
    made, found = copy.deepcopy(net).train(is_training), Outputs()

    def keep(name: str, out: Any) -> None:
        # Cloned: the activation that follows may work in place.
        found.setdefault(name, []).extend(part.float().clone() for part in tree_leaves(out) if isinstance(part, Tensor))

    for name, module in made.named_modules():
        module.register_forward_hook(lambda module, given, out, name=name: keep(name, out))
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        run(made)
    return found


def _unlike(net: nn.Module, one: Outputs, other: Outputs) -> str | None:
    for name, outputs in one.items():
        if not _are_alike(outputs, other.get(name, outputs)):
            kind = type(net.get_submodule(name)).__name__
            return f"{name} ({kind})" if name else kind
    return None


def _are_alike(one: list[Tensor], other: list[Tensor]) -> bool:
    if [part.shape for part in one] != [part.shape for part in other]:
        return False
    pairs = zip(one, other, strict=True)
    return all(torch.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True) for a, b in pairs)
