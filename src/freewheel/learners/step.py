"""One update as a function of flat vectors: forward, target, loss, backward, clip, Adam, target network.

Eager or compiled into one graph it is the same mathematics: everything random comes in, everything it changes is in `State`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value

from freewheel.algos.algo import Algo, Batch, Draws, Outcome
from freewheel.config import LearnerConfig
from freewheel.errors import ConfigError
from freewheel.learners import memory, package
from freewheel.learners.adam import PIECE, Adam, State
from freewheel.learners.nested import Nested, filled, leaves, mapped, moved, nth, num_rows, parts_of, rows_of
from freewheel.learners.package import Function
from freewheel.nets.flat import Flat
from freewheel.nets.inputs import set_memory_format

# Updates in one compiled graph: 8 share the cost of a call; more only take longer to compile.
MOST_UNROLLED = 8

# Names of what an algorithm's `later` gives, in their order.
LATER = ("later", "best")

DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class Gradient(NamedTuple):
    """Of the parameters (times the scale, with fp16); the mean loss; the outcome of the rows."""

    vector: Tensor
    loss: Tensor
    outcome: Outcome


class Updated(NamedTuple):
    """Each update's loss and norm of the gradient before clipping; the outcome of all rows."""

    loss: Tensor
    norm: Tensor
    outcome: Outcome


class Step:
    """The update of one policy; `unrolled` updates a call, whose batches and draws then come stacked.

    It starts eager. `compile`, or `adopt` of what `package` made in another process, changes how the next updates are worked
    out and nothing else: state, shapes and results stay those of the eager ones.

    A loss or gradient that is not finite leaves weights and optimiser as they were; `state.bad_in_row` counts such updates.
    """

    def __init__(
        self,
        net: nn.Module,
        algo: Algo,
        config: LearnerConfig,
        *,
        unrolled: int = 1,
        precision: str = "fp32",
        memory_format: str = "contiguous",
        device: torch.device | str = "cpu",
    ) -> None:
        """`precision` is fp32, bf16 or fp16, `memory_format` contiguous or channels_last: whoever builds the step finds out what "auto" means."""
        self.algo, self.config, self.unrolled = algo, config, unrolled
        self.device = torch.device(device)
        net = net.to(self.device)
        self.flat = Flat(net)
        weights = self.flat.vector(net)
        self.state = State.around(weights, self.flat.num_params)
        self.target_net = self.flat.bind(copy.deepcopy(net), self.state.target).eval().requires_grad_(False)
        # BatchNorm takes its statistics only from the rows that are trained on, not when it chooses or values.
        self.eval_net = self.flat.bind(copy.deepcopy(net), weights).eval().requires_grad_(False)
        self.net = self.flat.bind(net, weights).train()
        self.take_form(precision, memory_format)
        # Parts that a batch is worked off in: as asked for, and more once memory has run out.
        self.num_parts = config.accumulate
        self.notes: list[str] = []  # what the user should read
        self._params = list(self.net.parameters())
        self.num_updates = 0
        # Who works out the gradient of one batch: this process alone, or a team.
        self.gradient_by: Callable[[Batch, Draws], Gradient] = self.gradient
        self._apply = Adam(config, self.flat.num_params, self.device, is_scaled=precision == "fp16")
        self._piece = PIECE if self.device.type == "cpu" else 0
        self._lr = torch.zeros((), device=self.device)
        self._compiled: Function | None = None
        self._later: Function | None = None
        self.num_moves = 0  # of the target
        # A graph moves the target between its updates; after its last one Python can do it, without a cost to the others.
        self._moves_in_graph = config.target_every_updates % unrolled != 0
        # A graph of a batch in parts would hold the network as many times: one part's gradient is compiled, and called for each.
        self._is_by_parts = config.accumulate > 1
        # Where the target stands still during a call, what it says can be worked out for all its updates at once, and before.
        self.has_later = algo.later is not None and not self._moves_in_graph and not self._is_by_parts

    @property
    def is_compiled(self) -> bool:
        return self._compiled is not None

    def update(self, batch: Batch, draws: Draws, lr: float, later: Nested | None = None) -> Updated:
        """With `unrolled` > 1 every tensor of batch and draws has that many along its first dimension.

        `later` is what `self.later` gives, where somebody has worked it out before.
        """
        self._lr.fill_(lr)
        # A team moves each worker's rows to its device itself.
        if self.device.type != "cpu" and self.gradient_by == self.gradient:
            batch, draws = moved(batch, self.device), moved(draws, self.device)
        if self._compiled is None or self._is_by_parts:
            return self._update_eagerly({**batch, **(later or {})}, draws)
        if self.has_later:
            batch = {**batch, **(later or self.later(batch, draws))}
        try:
            loss, norm, *outcome = self._compiled(*self._args(self.state, batch, draws))
        except RuntimeError as error:  # a package does not say whether memory was short: the eager update will
            self.go_back(f"the compiled update failed ({memory.first_line(error)})")
            return self._update_eagerly(batch, draws)
        self.num_updates += self.unrolled
        if not self._moves_in_graph:
            self._move_target()
        return Updated(loss, norm, Outcome(*outcome))

    def gradient(self, batch: Batch, draws: Draws) -> Gradient:
        """Of the mean loss over the rows, worked off in parts: in twice as many whenever memory does not suffice."""
        while True:
            is_whole = self._compiled is None or not self._is_by_parts
            of_part = self._gradient_of_modules if is_whole else self._gradient_compiled
            with memory.noticed() as shortage:
                return self._in_parts(of_part, batch, draws)
            self.num_parts = memory.more_parts(self.num_parts, num_rows(batch), shortage.error)
            self.go_back(f"memory ran out ({memory.first_line(shortage.error)})")
            self.notes.append(
                f"warning: each batch is worked off in {self.num_parts} parts from now on, with the same gradient as before. "
                f"--learner.accumulate {self.num_parts} does so from the start."
            )

    def take_form(self, precision: str, memory_format: str) -> None:
        """How the passes are made from the next update on; one that is compiled already stays as it is."""
        self.precision, self.memory_format = precision, memory_format
        self._dtype = DTYPES[precision]
        for net in (self.net, self.eval_net, self.target_net):
            set_memory_format(net, memory_format)

    def go_back(self, why: str = "") -> None:
        """To eager updates, if it makes compiled ones."""
        if self._compiled is not None and why:
            self.notes.append(f"warning: {why}: updates are eager from now on.")
        self._compiled = self._later = None

    def later(self, batch: Batch, draws: Draws) -> dict[str, Tensor]:
        """What the target network says of the next states: all that the updates of a call need of it."""
        seen = seen_later(batch, draws)
        if self._later is None:
            return self._later_of(self.state.target, seen)
        return dict(zip(LATER, self._later(self.state.target, *leaves(seen)), strict=False))

    def compile(self, batch: Batch, draws: Draws) -> None:
        """Compiles for arguments of these shapes and strides, or takes from the disk, and is used from the next update on."""
        self._refuse_team()
        self._use([package.compiled(*one)[0] for one in self._functions(batch, draws)])

    def package(self, batch: Batch, draws: Draws) -> list[Path]:
        """The same in a helper process, for the `adopt` of an equal step. It is tried once: what dies, dies here."""
        paths = []
        for function, args in self._functions(batch, draws):
            run, path = package.compiled(function, args)
            run(*(arg.clone() if arg.is_contiguous() else arg for arg in args))  # what it changes is contiguous
            paths.append(path)
        return paths

    def packaged(self, batch: Batch, draws: Draws) -> list[Path] | None:
        """What `package` would give, if it was made before."""
        found = [package.find(*one) for one in self._functions(batch, draws)]
        return None if None in found else [path for path in found if path is not None]

    def adopt(self, paths: Sequence[Path]) -> None:
        """Uses what `package` of an equal step made from the next update on."""
        self._refuse_team()
        self._use([package.load(path) for path in paths])

    def _use(self, functions: Sequence[Function]) -> None:
        self._compiled = functions[0]
        self._later = functions[1] if self.has_later else None

    def live_in(self, weights: Tensor, target: Tensor) -> None:
        """Uses these vectors and what they hold as weights and target from now on, in place of its own."""
        self.state.weights, self.state.target = weights, target
        for net, vector in ((self.net, weights), (self.eval_net, weights), (self.target_net, target)):
            self.flat.bind(net, vector)

    def tensors(self) -> dict[str, Tensor]:
        """All of the state by name, over its own memory: for a checkpoint, and to restore one by copying into it."""
        state = self.state
        named = {f"net.{name}": view for name, view in self.flat.views(state.weights).items()}
        named |= {f"target.{name}": view for name, view in self.flat.views(state.target).items()}
        rest = {name: tensor for name, tensor in vars(state).items() if name not in ("weights", "target")}
        return named | {f"optimizer.{name}": tensor for name, tensor in rest.items()}

    def _update_eagerly(self, batch: Batch, draws: Draws) -> Updated:
        each = []
        for i in range(self.unrolled):
            one = (batch, draws) if self.unrolled == 1 else (nth(batch, i), nth(draws, i))
            gradient, loss, outcome = self.gradient_by(*one)
            each.append(Updated(loss, self._apply(self.state, self._lr, gradient, loss, self._piece), outcome))
            self.num_updates += 1
            self._move_target()
        return _joined(each)

    def _move_target(self) -> None:
        if self.num_updates % self.config.target_every_updates == 0:
            self.state.target.lerp_(self.state.weights, self.config.tau)
            self.num_moves += 1

    def _functions(self, batch: Batch, draws: Draws) -> list[tuple[Function, list[Tensor]]]:
        """What is compiled, each with arguments as it will be called with: the updates, and `later` where there is one."""
        if self.device.type != "cpu":
            batch, draws = moved(batch, self.device), moved(draws, self.device)
        if self._is_by_parts:
            if self.unrolled > 1:
                batch, draws = nth(batch, 0), nth(draws, 0)
            batch, draws = rows_of(batch, draws, *parts_of(num_rows(batch), self.config.accumulate)[0])
            return [(self._part_function(batch, draws), self._args(self.state, batch, draws))]
        if not self.has_later:
            return [(self._flat_function(batch, draws), self._args(self.state, batch, draws))]
        seen = seen_later(batch, draws)
        full = {**batch, **self._later_of(self.state.target, seen)}

        def later(target: Tensor, *given: Tensor) -> list[Tensor]:
            return list(self._later_of(target, filled(seen, iter(given))).values())

        return [
            (self._flat_function(full, draws), self._args(self.state, full, draws)),
            (later, [self.state.target, *leaves(seen)]),
        ]

    def _later_of(self, target: Tensor, seen: Nested) -> dict[str, Tensor]:
        """In one pass over the rows of all updates, unless each has noise of its own.

        Contiguous, as shared memory has it: a compiled update takes every argument for laid out like its example.
        """
        assert self.algo.later is not None
        look = partial(self.algo.later, self._forward_by_views, self.flat.views(target))
        with torch.no_grad():
            if self.unrolled == 1:
                found = look(seen, seen)
            elif "target_noise" in seen:
                each = [look(nth(seen, i), nth(seen, i)) for i in range(self.unrolled)]
                found = {name: torch.stack([one[name] for one in each]) for name in each[0]}
            else:
                rows = mapped(seen, lambda tensor: tensor.flatten(0, 1))
                found = {name: _grouped(tensor, self.unrolled) for name, tensor in look(rows, rows).items()}
        return {name: tensor.contiguous() for name, tensor in found.items()}

    def _flat_function(self, batch: Batch, draws: Draws) -> Function:
        """`_graph` with tensors alone going in and coming out."""

        def function(*given: Tensor) -> list[Tensor]:
            rest = iter(given)
            state = State(*(next(rest) for _ in fields(State)))
            loss, norm, outcome = self._graph(state, next(rest), filled(batch, rest), filled(draws, rest))
            return [loss, norm, *outcome]

        return function

    def _part_function(self, batch: Batch, draws: Draws) -> Function:
        """The gradient of a part of a batch; statistics of the network change in place."""

        def function(*given: Tensor) -> list[Tensor]:
            rest = iter(given)
            state = State(*(next(rest) for _ in fields(State)))
            next(rest)  # the learning rate
            gradient, loss, outcome = self._gradient_of_vectors(state, filled(batch, rest), filled(draws, rest))
            return [gradient, loss, *outcome]

        return function

    def _gradient_compiled(self, state: State, batch: Batch, draws: Draws) -> Gradient:
        assert self._compiled is not None
        gradient, loss, *outcome = self._compiled(*self._args(state, batch, draws))
        return Gradient(gradient, loss, Outcome(*outcome))

    def _args(self, state: State, batch: Batch, draws: Draws) -> list[Tensor]:
        return [*vars(state).values(), self._lr, *leaves(batch), *leaves(draws)]

    def _graph(self, state: State, lr: Tensor, batch: Batch, draws: Draws) -> Updated:
        """The updates of one call as a function of nothing but its arguments."""
        each = []
        for i in range(self.unrolled):
            one = (batch, draws) if self.unrolled == 1 else (nth(batch, i), nth(draws, i))
            gradient, loss, outcome = self._gradient_of_vectors(state, *one)
            each.append(Updated(loss, self._apply(state, lr, gradient, loss), outcome))
            if self._moves_in_graph:
                moves = (state.updates % self.config.target_every_updates == 0).float() * self.config.tau
                state.target.lerp_(state.weights, moves)
        return _joined(each)

    def _in_parts(self, gradient_of: Callable[[State, Batch, Draws], Gradient], batch: Batch, draws: Draws) -> Gradient:
        if self.num_parts == 1:
            return gradient_of(self.state, batch, draws)
        rows = num_rows(batch)
        parts = parts_of(rows, self.num_parts)
        each = [gradient_of(self.state, *rows_of(batch, draws, *part)) for part in parts]
        return summed(each, [count / rows for _, count in parts])

    def _gradient_of_modules(self, state: State, batch: Batch, draws: Draws) -> Gradient:
        """For the eager path: networks whose tensors are views of the vectors cost less than handing them the views."""

        def forward(module: Any, obs: Any, noise: Tensor | None, taus: Tensor | None) -> Tensor:
            if module is self.net and not torch.is_grad_enabled():
                module = self.eval_net
            with self._cast():
                out: Tensor = module(obs, noise, taus)
            return out.float()

        loss, outcome = self.algo.loss(forward, self.net, self.target_net, batch, draws)
        each = torch.autograd.grad(self._scaled(state, loss), self._params, materialize_grads=True)
        return Gradient(torch.cat([part.reshape(-1) for part in each]), loss.detach(), outcome)

    def _gradient_of_vectors(self, state: State, batch: Batch, draws: Draws) -> Gradient:
        """For the compiled path: a pure function of the vectors, which becomes one graph."""
        params, buffers = self.flat.split(state.weights)
        target = self.flat.views(state.target)
        forward = self._forward_by_views

        def loss_of(params: Tensor, buffers: Tensor) -> tuple[Tensor, tuple[Tensor, Outcome, dict[str, Tensor]]]:
            # Copies: a function may not change its arguments, and each has to count its changes apart.
            moving = {name: view.clone() for name, view in self.flat.buffer_views(buffers).items()}
            loss, outcome = self.algo.loss(forward, self.flat.param_views(params) | moving, target, batch, draws)
            after = {name: tensor.detach() for name, tensor in moving.items()}
            return self._scaled(state, loss), (loss.detach(), outcome, after)

        gradient, (_, (loss, outcome, after)) = grad_and_value(loss_of, has_aux=True)(params, buffers)
        for name, view in self.flat.buffer_views(buffers).items():
            view.copy_(after[name])
        return Gradient(gradient, loss, outcome)

    def _forward_by_views(self, given: Any, obs: Any, noise: Tensor | None, taus: Tensor | None) -> Tensor:
        module = self.net if torch.is_grad_enabled() else self.eval_net
        with self._cast():
            out: Tensor = functional_call(module, given, (obs, noise, taus))
        return out.float()

    def _cast(self) -> AbstractContextManager[Any]:
        """Around the network's passes; the loss itself is float32. Each weight is cast once a pass: nothing to cache."""
        if self._dtype is None:
            return nullcontext()
        return torch.autocast(self.device.type, self._dtype, cache_enabled=False)

    def _scaled(self, state: State, loss: Tensor) -> Tensor:
        return loss * state.scale if self.precision == "fp16" else loss

    def _refuse_team(self) -> None:
        if self.gradient_by != self.gradient:
            raise ConfigError("a compiled update works with learner.workers=1 alone. Train with --compile off.")


def seen_later(batch: Batch, draws: Draws) -> dict[str, Any]:
    """What the target network is shown, contiguous: stacks that share frames lie otherwise in the replay than with the process ahead."""
    seen = {"next_obs": batch["next_obs"]} | {name: draw for name, draw in draws.items() if name.startswith("target_")}
    return mapped(seen, lambda tensor: tensor.contiguous())


def _grouped(rows: Tensor, groups: int) -> Tensor:
    return rows.view(groups, -1, *rows.shape[1:])


def unrolled(updates_per_call: int) -> int:
    """The most updates that one graph may hold and that divide the updates of a call."""
    return max(n for n in range(1, MOST_UNROLLED + 1) if updates_per_call % n == 0)


def summed(each: Sequence[Gradient], shares: Sequence[float]) -> Gradient:
    """The gradient of all rows from those of parts of them, whose shares of the rows add up to 1."""
    vector, loss = each[0].vector * shares[0], each[0].loss * shares[0]
    for part, share in zip(each[1:], shares[1:], strict=True):
        vector, loss = vector.add_(part.vector, alpha=share), loss + part.loss * share
    return Gradient(vector, loss, joined([part.outcome for part in each]))


def joined(outcomes: Sequence[Outcome]) -> Outcome:
    return outcomes[0] if len(outcomes) == 1 else Outcome(*(torch.cat(parts) for parts in zip(*outcomes, strict=True)))


def _joined(each: list[Updated]) -> Updated:
    if len(each) == 1:
        return each[0]
    loss, norm = torch.stack([done.loss for done in each]), torch.stack([done.norm for done in each])
    return Updated(loss, norm, joined([done.outcome for done in each]))
