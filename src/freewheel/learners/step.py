"""One update as a function of flat vectors: forward, target, loss, backward, clip, Adam, target network.

Eager or compiled into one graph it is the same mathematics: everything random comes in, everything it changes is in `State`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value

from freewheel.algos.algo import Algo, Outcome
from freewheel.config import LearnerConfig
from freewheel.learners.package import Function, compiled
from freewheel.nets.flat import Flat

# Updates in one compiled graph: 8 share the cost of a call; more only take longer to compile.
MOST_UNROLLED = 8
# Keeps a gradient of norm 0 from being divided by it.
CLIP_EPS = 1e-6

Batch = Mapping[str, Any]
Draws = Mapping[str, Tensor]


@dataclass
class State:
    """Everything that an update changes, in place."""

    weights: Tensor  # parameters, then buffers
    target: Tensor
    mean: Tensor  # Adam's, of the gradient
    square: Tensor
    decay: Tensor  # beta1 and beta2 to the power of the updates carried out: for Adam's bias correction
    updates: Tensor  # updates asked for, the skipped ones too, int64
    bad_in_row: Tensor  # updates skipped since the last that was carried out, int64


class Updated(NamedTuple):
    """Each update's loss and norm of the gradient before clipping; the outcome of all rows."""

    loss: Tensor
    norm: Tensor
    outcome: Outcome


class Step:
    """The update of one policy, eager or compiled; `unrolled` updates a call.

    A loss or gradient that is not finite leaves weights and optimiser as they were; `state.bad_in_row` counts such updates.
    """

    def __init__(self, net: nn.Module, algo: Algo, config: LearnerConfig) -> None:
        self.flat = Flat(net)
        self.algo, self.config = algo, config
        weights = self.flat.vector(net)
        zeros = torch.zeros(self.flat.num_params, device=weights.device)
        self.state = State(
            weights=weights,
            target=weights.clone(),
            mean=zeros,
            square=zeros.clone(),
            decay=torch.ones(2, device=weights.device),
            updates=torch.zeros((), dtype=torch.int64, device=weights.device),
            bad_in_row=torch.zeros((), dtype=torch.int64, device=weights.device),
        )
        self.target_net = self.flat.bind(copy.deepcopy(net), self.state.target).eval().requires_grad_(False)
        # BatchNorm takes its statistics only from the rows that are trained on, not when it chooses or values.
        self.eval_net = self.flat.bind(copy.deepcopy(net), weights).eval().requires_grad_(False)
        self.net = self.flat.bind(net, weights).train()
        self._params = list(self.net.parameters())
        self.unrolled = unrolled(config.updates_per_call) if config.compile else 1
        self._moves_in_graph = config.compile and config.target_every_updates % self.unrolled != 0
        self._lr = torch.zeros((), device=weights.device)
        self._betas = torch.tensor([config.beta1, config.beta2], device=weights.device)
        self._run: Callable[[State, Tensor, Batch, Draws], Updated] = self._one
        self._gradient: Callable[[State, Batch, Draws], tuple[Tensor, Tensor, Outcome]] = self._gradient_of_modules
        if config.compile:
            self._gradient = self._gradient_of_vectors
            self._run = self._compile_and_run
        self.num_updates = 0

    def update(self, batch: Batch, draws: Draws, lr: float) -> Updated:
        """With `unrolled` > 1 every tensor of batch and draws has that many along its first dimension."""
        self._lr.fill_(lr)
        done = self._run(self.state, self._lr, batch, draws)
        self.num_updates += self.unrolled
        if not self._moves_in_graph and self.num_updates % self.config.target_every_updates == 0:
            self.state.target.lerp_(self.state.weights, self.config.tau)
        return done

    def tensors(self) -> dict[str, Tensor]:
        """All of the state by name, over its own memory: for a checkpoint, and to restore one by copying into it."""
        state = self.state
        named = {f"net.{name}": view for name, view in self.flat.views(state.weights).items()}
        named |= {f"target.{name}": view for name, view in self.flat.views(state.target).items()}
        rest = {name: getattr(state, name) for name in ("mean", "square", "decay", "updates", "bad_in_row")}
        return named | {f"optimizer.{name}": tensor for name, tensor in rest.items()}

    def _compile_and_run(self, state: State, lr: Tensor, batch: Batch, draws: Draws) -> Updated:
        """The first call: its arguments show the shapes."""
        run = compiled(self._flat_function(batch, draws), [*vars(state).values(), lr, *_leaves(batch), *_leaves(draws)])

        def call(state: State, lr: Tensor, batch: Batch, draws: Draws) -> Updated:
            loss, norm, *outcome = run(*vars(state).values(), lr, *_leaves(batch), *_leaves(draws))
            return Updated(loss, norm, Outcome(*outcome))

        self._run = call
        return call(state, lr, batch, draws)

    def _flat_function(self, batch: Batch, draws: Draws) -> Function:
        """`_several` with tensors alone going in and coming out."""

        def function(*given: Tensor) -> list[Tensor]:
            rest = iter(given)
            state = State(*(next(rest) for _ in fields(State)))
            loss, norm, outcome = self._several(state, next(rest), _filled(batch, rest), _filled(draws, rest))
            return [loss, norm, *outcome]

        return function

    def _several(self, state: State, lr: Tensor, batch: Batch, draws: Draws) -> Updated:
        if self.unrolled == 1:
            return self._one(state, lr, batch, draws)
        each = [self._one(state, lr, _nth(batch, i), _nth(draws, i)) for i in range(self.unrolled)]
        return Updated(
            torch.stack([done.loss for done in each]),
            torch.stack([done.norm for done in each]),
            _joined([done.outcome for done in each]),
        )

    def _one(self, state: State, lr: Tensor, batch: Batch, draws: Draws) -> Updated:
        num_parts = self.config.accumulate
        parts = [self._gradient(state, *_share(batch, draws, i, num_parts)) for i in range(num_parts)]
        gradient, loss = parts[0][:2]
        for more, more_loss, _ in parts[1:]:
            gradient, loss = gradient + more, loss + more_loss
        if num_parts > 1:  # each part's loss is a mean over its rows
            gradient, loss = gradient / num_parts, loss / num_parts
        norm = self._apply(state, lr, gradient, loss)
        if self._moves_in_graph:
            moves = (state.updates % self.config.target_every_updates == 0).float() * self.config.tau
            state.target.lerp_(state.weights, moves)
        return Updated(loss, norm, _joined([outcome for _, _, outcome in parts]))

    def _gradient_of_modules(self, state: State, batch: Batch, draws: Draws) -> tuple[Tensor, Tensor, Outcome]:
        """For the eager path: networks whose tensors are views of the vectors cost less than handing them the views."""

        def forward(module: Any, obs: Any, noise: Tensor | None, taus: Tensor | None) -> Tensor:
            if module is self.net and not torch.is_grad_enabled():
                module = self.eval_net
            out: Tensor = module(obs, noise, taus)
            return out

        loss, outcome = self.algo.loss(forward, self.net, self.target_net, batch, draws)
        each = torch.autograd.grad(loss, self._params, materialize_grads=True)
        return torch.cat([part.reshape(-1) for part in each]), loss.detach(), outcome

    def _gradient_of_vectors(self, state: State, batch: Batch, draws: Draws) -> tuple[Tensor, Tensor, Outcome]:
        """For the compiled path: a pure function of the vectors, which becomes one graph."""
        params, buffers = self.flat.split(state.weights)
        target = self.flat.views(state.target)

        def forward(given: Any, obs: Any, noise: Tensor | None, taus: Tensor | None) -> Tensor:
            module = self.net if torch.is_grad_enabled() else self.eval_net
            out: Tensor = functional_call(module, given, (obs, noise, taus))
            return out

        def loss_of(params: Tensor, buffers: Tensor) -> tuple[Tensor, tuple[Outcome, dict[str, Tensor]]]:
            # Copies: a function may not change its arguments, and each has to count its changes apart.
            moving = {name: view.clone() for name, view in self.flat.buffer_views(buffers).items()}
            loss, outcome = self.algo.loss(forward, self.flat.param_views(params) | moving, target, batch, draws)
            return loss, (outcome, {name: moved.detach() for name, moved in moving.items()})

        gradient, (loss, (outcome, moved)) = grad_and_value(loss_of, has_aux=True)(params, buffers)
        for name, view in self.flat.buffer_views(buffers).items():
            view.copy_(moved[name])
        return gradient, loss, outcome

    def _apply(self, state: State, lr: Tensor, gradient: Tensor, loss: Tensor) -> Tensor:
        """Clip and Adam, masked: where loss or gradient is not finite every factor is 0 and nothing changes."""
        config = self.config
        norm: Tensor = torch.linalg.vector_norm(gradient)
        is_good = torch.isfinite(norm + loss)
        good = is_good.float()
        state.updates.add_(1)
        state.bad_in_row.add_(1).mul_(~is_good)
        state.decay.mul_(torch.where(is_good, self._betas, 1.0))
        # Before the first good update the means are 0: the guard only keeps 0/0 out.
        mean_share, square_share = (1 - state.decay).clamp(min=1e-12)
        clip = (config.clip_norm / (norm + CLIP_EPS)).clamp(max=1.0) if config.clip_norm > 0 else torch.ones_like(norm)
        # Stacked, so that a compiled graph works these out once and not for every weight.
        rate = lr * good
        clip, take_mean, take_square, rate, spread, keep = torch.stack(
            [
                clip,
                good * (1 - config.beta1),
                good * (1 - config.beta2),
                rate / mean_share,
                square_share.rsqrt(),
                1 - rate * config.weight_decay,
            ]
        )
        gradient = torch.where(is_good, gradient * clip, 0.0)
        params = state.weights[: self.flat.num_params]
        state.mean.lerp_(gradient, take_mean)
        state.square.lerp_(gradient.square(), take_square)
        if config.optimizer == "adamw":
            params.mul_(keep)
        params.sub_(rate * state.mean / (state.square.sqrt() * spread + config.adam_eps))
        return norm


def unrolled(updates_per_call: int) -> int:
    """The most updates that one graph may hold and that divide the updates of a call."""
    return max(n for n in range(1, MOST_UNROLLED + 1) if updates_per_call % n == 0)


def _leaves(tensors: Mapping[str, Any]) -> Iterator[Tensor]:
    for value in tensors.values():
        if isinstance(value, Mapping):
            yield from _leaves(value)
        else:
            yield value


def _filled(like: Mapping[str, Any], given: Iterator[Tensor]) -> dict[str, Any]:
    """The reverse of `_leaves`."""
    return {name: _filled(value, given) if isinstance(value, Mapping) else next(given) for name, value in like.items()}


def _nth(tensors: Mapping[str, Any], i: int) -> dict[str, Any]:
    return {name: _nth(value, i) if isinstance(value, Mapping) else value[i] for name, value in tensors.items()}


def _share(batch: Batch, draws: Draws, i: int, num_parts: int) -> tuple[Batch, Draws]:
    """Part i of the rows. Draws of one dimension serve every row, the others have one line per row."""
    if num_parts == 1:
        return batch, draws
    rows = _chunk(batch, i, num_parts)
    return rows, {name: draw if draw.ndim == 1 else draw.chunk(num_parts)[i] for name, draw in draws.items()}


def _chunk(tensors: Mapping[str, Any], i: int, num_parts: int) -> dict[str, Any]:
    return {
        name: _chunk(value, i, num_parts) if isinstance(value, Mapping) else value.chunk(num_parts)[i]
        for name, value in tensors.items()
    }


def _joined(outcomes: list[Outcome]) -> Outcome:
    return outcomes[0] if len(outcomes) == 1 else Outcome(*(torch.cat(parts) for parts in zip(*outcomes, strict=True)))
