"""One PPO update as a function of flat vectors: forward, loss, backward, clip, Adam. Eager or compiled it is the same mathematics."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value

from freewheel.algos.ppo import PPO
from freewheel.config import LearnerConfig
from freewheel.learners import package
from freewheel.learners.adam import PIECE, Adam, State
from freewheel.learners.nested import filled, leaves, nth
from freewheel.learners.package import Function
from freewheel.nets.actor_critic import ActorCritic
from freewheel.nets.flat import Flat

Batch = Mapping[str, Any]


class Updated(NamedTuple):
    """Of each update of a call: the loss, the norm of the gradient before clipping, the figures of the loss."""

    loss: Tensor
    norm: Tensor
    figures: Tensor


class PPOStep:
    """The update of one policy; a call makes `unrolled` of them, whose minibatches come stacked: [unrolled, rows, ...].

    `net` trains and `act_net` acts, both over the memory of `state.weights`. A loss or gradient that is not finite leaves
    weights and optimiser as they were; `state.bad_in_row` counts such updates.
    """

    def __init__(self, net: ActorCritic, ppo: PPO, config: LearnerConfig, unrolled: int = 1) -> None:
        self.ppo, self.config, self.unrolled = ppo, config, unrolled
        self.flat = Flat(net)
        weights = self.flat.vector(net)
        self.state = State.around(weights, self.flat.num_params)
        self.state.target = torch.zeros(1)  # there is no second network
        self.act_net: ActorCritic = copy.deepcopy(net)
        self.flat.bind(self.act_net, weights).eval().requires_grad_(False)
        self.net: ActorCritic = net
        self.flat.bind(net, weights).train()
        self._params = list(net.parameters())
        self._apply = Adam(config, self.flat.num_params, torch.device("cpu"), is_scaled=False)
        self._lr, self._clip = torch.zeros(()), torch.zeros(())
        self._compiled: Function | None = None
        self.num_updates = 0

    @property
    def is_compiled(self) -> bool:
        return self._compiled is not None

    def update(self, batch: Batch, lr: float, clip: float) -> Updated:
        self._lr.fill_(lr)
        self._clip.fill_(clip)
        self.num_updates += self.unrolled
        if self._compiled is not None:
            return Updated(*self._compiled(*self._args(batch)))
        return _stacked([self._eager(nth(batch, i)) for i in range(self.unrolled)])

    def compile(self, batch: Batch) -> None:
        """Compiles for minibatches of these shapes, or takes from the disk, and is used from the next update on."""
        self._compiled, _ = package.compiled(self._flat_function(batch), self._args(batch))

    def tensors(self) -> dict[str, Tensor]:
        """All of the state by name, over its own memory: for a checkpoint, and to restore one by copying into it."""
        named = {f"net.{name}": view for name, view in self.flat.views(self.state.weights).items()}
        rest = {name: tensor for name, tensor in vars(self.state).items() if name not in ("weights", "target")}
        return named | {f"optimizer.{name}": tensor for name, tensor in rest.items()}

    def _eager(self, batch: Batch) -> Updated:
        loss, figures = self.ppo.loss(self.net(batch["obs"]), batch, self._clip)
        each = torch.autograd.grad(loss, self._params, materialize_grads=True)
        gradient, loss = torch.cat([part.reshape(-1) for part in each]), loss.detach()
        return Updated(loss, self._apply(self.state, self._lr, gradient, loss, PIECE), figures)

    def _flat_function(self, batch: Batch) -> Function:
        """The updates of one call with tensors alone going in and coming out."""

        def function(*given: Tensor) -> list[Tensor]:
            rest = iter(given)
            state = State(*(next(rest) for _ in fields(State)))
            lr, clip = next(rest), next(rest)
            whole = filled(batch, rest)
            return list(_stacked([self._pure(state, lr, clip, nth(whole, i)) for i in range(self.unrolled)]))

        return function

    def _pure(self, state: State, lr: Tensor, clip: Tensor, batch: Batch) -> Updated:
        params, buffers = self.flat.split(state.weights)
        constants = self.flat.buffer_views(buffers)

        def loss_of(params: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            out = functional_call(self.net, self.flat.param_views(params) | constants, (batch["obs"],))
            loss, figures = self.ppo.loss(out, batch, clip)
            return loss, (loss.detach(), figures)

        gradient, (_, (loss, figures)) = grad_and_value(loss_of, has_aux=True)(params)
        return Updated(loss, self._apply(state, lr, gradient, loss), figures)

    def _args(self, batch: Batch) -> list[Tensor]:
        return [*vars(self.state).values(), self._lr, self._clip, *leaves(batch)]


def _stacked(each: list[Updated]) -> Updated:
    return Updated(*(torch.stack(list(parts)) for parts in zip(*each, strict=True)))
