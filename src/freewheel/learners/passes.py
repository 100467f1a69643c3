"""The networks of a policy over its vectors of weights, and the gradient of a loss as a pure function of those vectors."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate, pairwise, takewhile
from operator import methodcaller
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value

from freewheel.contracts import Algo, Batch, Draws, Hyper, ParamGroup
from freewheel.errors import ConfigError
from freewheel.learners.optimizer import State
from freewheel.nets.flat import Flat, views_of
from freewheel.nets.inputs import set_memory_format

DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class Gradient(NamedTuple):
    """Of a group's parameters (times the scale, with fp16); the mean loss; the outcome of the rows."""

    vector: Tensor
    loss: Tensor
    outcome: Any


class Passes:
    """The networks of one policy, over the memory of its vectors: one trains, one chooses and values, one is the target."""

    def __init__(self, algo: Algo, net: nn.Module, flat: Flat, state: State, device: torch.device) -> None:
        self.algo, self.flat, self.device = algo, flat, device
        self.target_net: nn.Module | None = None
        if has_target(algo):
            self.target_net = flat.bind(copy.deepcopy(net), state.target).eval().requires_grad_(False)
        # BatchNorm takes its statistics only from the rows that are trained on, not when it chooses or values.
        self.eval_net = flat.bind(copy.deepcopy(net), state.weights).eval().requires_grad_(False)
        self.net = flat.bind(net, state.weights).train()
        self._shapes = shapes_of(flat, algo.groups)
        self.slices = slices_of(self._shapes)
        named = dict(net.named_parameters())
        self.params = [[named[name] for name in shapes] for shapes in self._shapes]

    def take_form(self, precision: str, memory_format: str) -> None:
        """How passes are made from now on; an update that is compiled already stays as it is."""
        self.precision, self.memory_format = precision, memory_format
        self._dtype = DTYPES[precision]
        for net in (self.net, self.eval_net, self.target_net):
            if net is not None:
                set_memory_format(net, memory_format)

    def bind(self, weights: Tensor, target: Tensor) -> None:
        """The networks use these vectors from now on."""
        for net, vector in ((self.net, weights), (self.eval_net, weights), (self.target_net, target)):
            if net is not None:
                self.flat.bind(net, vector)

    def by_vectors(self, state: State, which: int, batch: Batch, draws: Draws, hyper: Hyper) -> Gradient:
        """For the compiled path: a pure function of the vectors, which becomes one graph."""
        part = self.algo.losses[which]
        params, buffers = self.flat.split(state.weights)
        target = self.flat.views(state.target) if self.target_net is not None else None
        own = slice(self.slices[part.groups[0]].start, self.slices[part.groups[-1]].stop)
        shapes = {name: shape for group in part.groups for name, shape in self._shapes[group].items()}
        frozen = self.flat.param_views(params) if len(self.slices) > 1 else {}

        def loss_of(trained: Tensor, buffers: Tensor) -> tuple[Tensor, tuple[Tensor, Any, dict[str, Tensor]]]:
            # Copies: a function may not change its arguments, and each has to count its changes apart.
            moving = {name: view.clone() for name, view in self.flat.buffer_views(buffers).items()}
            given = (frozen | views_of(trained, shapes)) if frozen else self.flat.param_views(trained)
            given = given | moving
            loss, outcome = part.function(self.by_views, given, target, batch, draws, hyper)
            after = {name: tensor.detach() for name, tensor in moving.items()}
            return self.scaled(state, part.groups[0], loss), (loss.detach(), outcome or (), after)

        trained = params[own].clone() if frozen else params
        gradient, (_, (loss, outcome, after)) = grad_and_value(loss_of, has_aux=True)(trained, buffers)
        for name, view in self.flat.buffer_views(buffers).items():
            view.copy_(after[name])
        return Gradient(gradient, loss, outcome or None)

    def by_views(self, weights: Any, *given: Any, **named: Any) -> Tensor:
        module = self.net if torch.is_grad_enabled() else self.eval_net
        with self.cast():
            out: Tensor = functional_call(module, weights, given, named)
        return out.float()

    def cast(self) -> AbstractContextManager[Any]:
        """Around the network's passes; the loss itself is float32. Each weight is cast once a pass: nothing to cache."""
        if self._dtype is None:
            return nullcontext()
        return torch.autocast(self.device.type, self._dtype, cache_enabled=False)

    def scaled(self, state: State, group: int, loss: Tensor) -> Tensor:
        if self.precision != "fp16":
            return loss
        return loss * (state.scale if len(self.slices) == 1 else state.scale[group])

    def by_group(self, state: State, which: int, gradient: Tensor) -> list[tuple[int, Tensor]]:
        """The gradient of a loss, a part for each of its groups, with the group's own scale in place of the first one's."""
        first, *others = groups = self.algo.losses[which].groups
        if not others:
            return [(first, gradient)]
        parts = torch.split(gradient, [self.slices[index].stop - self.slices[index].start for index in groups])
        if self.precision == "fp16":
            each = zip(groups, parts, strict=True)
            return [(index, part * (state.scale[index] / state.scale[first])) for index, part in each]
        return list(zip(groups, parts, strict=True))


def has_target(algo: Algo) -> bool:
    return any(group.target is not None for group in algo.groups)


def shapes_of(flat: Flat, groups: Sequence[ParamGroup]) -> list[dict[str, torch.Size]]:
    """The parameters of each group: together they are all of them, in order."""
    names, found = list(flat.param_shapes), list[dict[str, torch.Size]]()
    for group in groups:
        own = [*takewhile(methodcaller("startswith", group.prefix), names)]
        if not own:
            raise ConfigError(
                f"the network has no parameters of the group {group.name!r} at their place ({group.prefix}*)."
            )
        found.append({name: flat.param_shapes[name] for name in own})
        names = names[len(own) :]
    if names:
        raise ConfigError(
            f"parameter {names[0]} of the network belongs to no parameter group, or its group is out of order."
        )
    return found


def slices_of(groups: Sequence[Mapping[str, torch.Size]]) -> list[slice]:
    """Where the parameters of each group lie in the vector."""
    ends = accumulate(sum(shape.numel() for shape in own.values()) for own in groups)
    return [slice(first, end) for first, end in pairwise([0, *ends])]
