"""One update as a function of flat vectors: for each loss forward, backward, clip, Adam; then the target network.

Eager or compiled into one graph it is the same mathematics: everything random comes in, everything it changes is in `State`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from freewheel.config import LearnerConfig
from freewheel.contracts import Algo, Batch, Draws, Hyper
from freewheel.errors import ConfigError
from freewheel.learners import out_of_memory, package
from freewheel.learners.graph import functions_of
from freewheel.learners.optimizer import PIECE, Adam, State
from freewheel.learners.package import Function
from freewheel.learners.passes import Gradient, Passes, has_target
from freewheel.learners.target_rules import move_within, rules_of, share_at
from freewheel.memory.nested import Nested, leaves, mapped, moved, nth, num_rows, parts_of, rows_of
from freewheel.nets.flat import Flat

# Updates in one compiled graph: 8 share the cost of a call; more only take longer to compile.
MOST_UNROLLED = 8

GradientOf = Callable[[Batch, Draws, int], Gradient]  # of one of the losses


class Updated(NamedTuple):
    """Each update's loss and norm of the gradient before clipping (with several losses one for each); the outcome."""

    loss: Tensor
    norm: Tensor
    outcome: Any


class Update:
    """The update of one policy; `unrolled` updates a call, whose batches and draws then come stacked.

    It starts eager. `compile`, or `adopt` of what `package` made in another process, changes how the next updates are
    computed and nothing else: state, shapes and results stay the same.

    A loss, gradient or statistic of the network that is not finite leaves weights, statistics and optimiser as they were;
    `state.bad_in_row` counts such updates.
    """

    def __init__(
        self,
        algo: Algo,
        config: LearnerConfig,
        *,
        unrolled: int = 1,
        precision: str = "fp32",
        memory_format: str = "contiguous",
        device: torch.device | str = "cpu",
    ) -> None:
        """`precision` is fp32, bf16 or fp16; the caller resolves "auto"."""
        self.algo, self.config, self.unrolled = algo, config, unrolled
        self.device = torch.device(device)
        net = algo.net.to(self.device)
        self.flat = Flat(net)
        self.state = State.around(self.flat.vector(net), self.flat.num_params, len(algo.groups), has_target(algo))
        self.passes = Passes(algo, net, self.flat, self.state, self.device)
        self.passes.take_form(precision, memory_format)
        # Parts that a batch is split into: as asked for, and more once memory has run out.
        self.num_parts = config.accumulate
        self.notes: list[str] = []  # what the user should read
        self.num_updates = 0
        # Computes the gradient of one batch: this process alone, or several.
        self.gradient_by: GradientOf = self.gradient
        self._optimizers = self._make_optimizers(precision == "fp16")
        self._piece = PIECE if self.device.type == "cpu" else 0
        self.hyper = {name: torch.zeros((), device=self.device) for name in ("lr", *algo.hyper(0.0))}
        # The updates of a call; or the gradient of a part of a batch, one for each loss.
        self._compiled: list[Function] = []
        self._lookahead: Function | None = None
        self.num_moves = 0  # of the target
        self.rules = rules_of(self.flat, self.passes.slices, algo.groups)
        # A graph moves the target between its updates; after its last one Python can do it, without a cost to the others.
        self.moves_in_graph = move_within(self.rules, unrolled)
        # A graph of a batch in parts would hold the network as many times: one part's gradient is compiled, and called for each.
        self.is_by_parts = config.accumulate > 1
        # Where the target stands still during a call, its outputs can be computed for all updates at once, and before.
        self.has_lookahead = algo.lookahead is not None and not self.moves_in_graph and not self.is_by_parts

    @property
    def is_compiled(self) -> bool:
        return bool(self._compiled)

    def __call__(self, batch: Batch, draws: Draws, hyper: Mapping[str, float], ahead: Nested | None = None) -> Updated:
        """With `unrolled` > 1 every tensor of batch and draws has that many along its first dimension.

        `ahead` is what `self.lookahead` gives, where it was computed before.
        """
        for name, value in hyper.items():
            self.hyper[name].fill_(value)
        # Gradient workers move their rows to their devices themselves.
        if self.device.type != "cpu" and self.gradient_by == self.gradient:
            batch, draws = self.on_device(batch, draws)
        if not self._compiled or self.is_by_parts:
            return self._update_eagerly({**batch, **(ahead or {})}, draws)
        if self.has_lookahead:
            batch = {**batch, **(ahead or self.lookahead(batch, draws))}
        try:
            loss, norm, *outcome = self._compiled[0](*self.args(batch, draws))
        except RuntimeError as error:  # a package does not say whether memory was short: the eager update will
            self.go_back(f"the compiled update failed ({out_of_memory.first_line(error)})")
            return self._update_eagerly(batch, draws)
        self.num_updates += self.unrolled
        if not self.moves_in_graph:
            # After an update alone, as before an error, no call ends where a target moves.
            self._move_targets(self.unrolled if self.num_updates % self.unrolled else 1)
        return Updated(loss, norm, self.algo.outcome(*outcome))

    def gradient(self, batch: Batch, draws: Draws, which: int = 0) -> Gradient:
        """Of a loss's mean over the rows, in parts: twice as many whenever memory runs out."""
        while True:
            is_whole = not self._compiled or not self.is_by_parts
            of_part: GradientOf = self.by_modules if is_whole else self._gradient_compiled
            try:
                return self._in_parts(of_part, batch, draws, which)
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory.is_shortage(error):
                    raise
                shortage = error.with_traceback(None)  # whose frames hold the tensors of the passes
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            self.num_parts = out_of_memory.more_parts(self.num_parts, num_rows(batch), shortage)
            self.go_back(f"memory ran out ({out_of_memory.first_line(shortage)})")
            self.notes.append(
                f"warning: each batch is split into {self.num_parts} parts from now on, with the same gradient as before. "
                f"--learner.accumulate {self.num_parts} does so from the start."
            )

    def go_back(self, why: str = "") -> None:
        """To eager updates, if it makes compiled ones."""
        if self._compiled and why:
            self.notes.append(f"warning: {why}: updates are eager from now on.")
        self._compiled, self._lookahead = [], None

    def lookahead(self, batch: Batch, draws: Draws) -> dict[str, Tensor]:
        """What the target network says of the next states: all that the updates of a call need of it."""
        seen = self.target_inputs(batch, draws)
        if self._lookahead is None or self.algo.lookahead is None:
            return self.look_ahead(self.state.target, seen)
        found = self._lookahead(self.state.target, *leaves(seen))
        return dict(zip(self.algo.lookahead.names, found, strict=True))

    @staticmethod
    def target_inputs(batch: Batch, draws: Draws) -> dict[str, Any]:
        """What the target network is shown, contiguous: stacks that share frames lie otherwise in the replay than with the target process."""
        own = {name: draw for name, draw in draws.items() if name.startswith("target_")}
        return mapped({"next_obs": batch["next_obs"], **own}, lambda tensor: tensor.contiguous())

    def look_ahead(self, target: Tensor, seen: Nested) -> dict[str, Tensor]:
        """What these target weights say, in one pass over the rows of all updates, unless each has noise of its own.

        Contiguous, as shared memory has it: a compiled update takes every argument for laid out like its example.
        """
        assert self.algo.lookahead is not None
        look = partial(self.algo.lookahead.function, self.passes.by_views, self.flat.views(target))
        with torch.no_grad():
            if self.unrolled == 1:
                found = look(seen, seen)
            elif "target_noise" in seen:
                each = [look(nth(seen, i), nth(seen, i)) for i in range(self.unrolled)]
                found = {name: torch.stack([one[name] for one in each]) for name in each[0]}
            else:
                rows = mapped(seen, lambda tensor: tensor.flatten(0, 1))
                found = {name: out.view(self.unrolled, -1, *out.shape[1:]) for name, out in look(rows, rows).items()}
        return {name: tensor.contiguous() for name, tensor in found.items()}

    def compile(self, batch: Batch, draws: Draws) -> None:
        """Compiles for arguments of these shapes and strides, or takes from the disk, and is used from the next update on."""
        self._refuse_workers()
        self._use([package.compiled(*one)[0] for one in functions_of(self, batch, draws)])

    def package(self, batch: Batch, draws: Draws) -> list[Path]:
        """The same in another process, for the `adopt` of an equal update. It is tried once: what dies, dies here."""
        paths = []
        for function, args in functions_of(self, batch, draws):
            run, path = package.compiled(function, args)
            run(*(arg.clone() if arg.is_contiguous() else arg for arg in args))  # what it changes is contiguous
            paths.append(path)
        return paths

    def packaged(self, batch: Batch, draws: Draws) -> list[Path] | None:
        """What `package` would give, if it was made before."""
        found = [package.find(*one) for one in functions_of(self, batch, draws)]
        return None if None in found else [path for path in found if path is not None]

    def adopt(self, paths: Sequence[Path]) -> None:
        """Uses what `package` of an equal update made, from the next update on."""
        self._refuse_workers()
        self._use([package.load(path) for path in paths])

    def _use(self, functions: Sequence[Function]) -> None:
        self._compiled = list(functions)
        self._lookahead = self._compiled.pop() if self.has_lookahead else None

    def on_device(self, batch: Batch, draws: Draws) -> tuple[Batch, Draws]:
        """These rows where it computes."""
        if self.device.type == "cpu":
            return batch, draws
        return moved(batch, self.device), moved(draws, self.device)

    def live_in(self, weights: Tensor, target: Tensor) -> None:
        """Uses these vectors and what they hold as weights and target from now on."""
        self.state.weights, self.state.target = weights, target
        self.passes.bind(weights, target)

    def tensors(self) -> dict[str, Tensor]:
        """All of the state by name, over its own memory: for a checkpoint, and to restore one by copying into it."""
        state = self.state
        named = {f"net.{name}": view for name, view in self.flat.views(state.weights).items()}
        if has_target(self.algo):
            named |= {f"target.{name}": view for name, view in self.flat.views(state.target).items()}
        rest = {name: tensor for name, tensor in vars(state).items() if name not in ("weights", "target")}
        return named | {f"optimizer.{name}": tensor for name, tensor in rest.items()}

    def _step(self, state: State, hyper: Hyper, which: int, gradient_of: Callable[[], Gradient], piece: int) -> Updated:
        """A loss's gradient and the step by it. Passes move statistics of the network (BatchNorm); a step that is skipped undoes that."""
        if self.flat.size == self.flat.num_params:
            return self._apply(state, hyper, which, gradient_of(), piece)
        _, statistics = self.flat.split(state.weights)
        before = statistics.clone()
        gradient = gradient_of()
        loss = torch.where(torch.isfinite(statistics).all(), gradient.loss, torch.nan)
        done = self._apply(state, hyper, which, gradient._replace(loss=loss), piece)
        statistics.copy_(torch.where(torch.isfinite(done.norm + done.loss), statistics, before))
        return done

    def _apply(self, state: State, hyper: Hyper, which: int, gradient: Gradient, piece: int) -> Updated:
        """One step of the optimiser for each group of a loss."""
        norms = []
        for index, vector in self.passes.by_group(state, which, gradient.vector):
            lr = hyper[self.algo.groups[index].lr]
            own = state if len(self.passes.slices) == 1 else state.of_group(index, self.passes.slices[index])
            norms.append(self._optimizers[index](own, lr, vector, gradient.loss, piece))
        norm = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))
        return Updated(gradient.loss, norm, gradient.outcome)

    def args(self, batch: Batch, draws: Draws) -> list[Tensor]:
        """What compiled functions are called with."""
        return [*vars(self.state).values(), *self.hyper.values(), *leaves(batch), *leaves(draws)]

    def run(
        self,
        state: State,
        hyper: Hyper,
        batch: Batch,
        draws: Draws,
        gradient_of: GradientOf,
        after: Callable[[], None],
        piece: int = 0,
    ) -> Updated:
        """The updates of one call, in order: for each loss its gradient and a step of the optimiser; then `after`."""
        each = []
        for i in range(self.unrolled):
            rows, drawn = (batch, draws) if self.unrolled == 1 else (nth(batch, i), nth(draws, i))
            done = [
                self._step(state, hyper, which, partial(gradient_of, rows, drawn, which), piece)
                for which in range(len(self.algo.losses))
            ]
            each.append(done[0] if len(done) == 1 else Updated(*_stacked(done), done[0].outcome))
            after()
        if len(each) == 1:
            return each[0]
        return Updated(*_stacked(each), self.algo.outcome.in_order([one.outcome for one in each]))

    def _update_eagerly(self, batch: Batch, draws: Draws) -> Updated:
        return self.run(self.state, self.hyper, batch, draws, self.gradient_by, self._count_one, self._piece)

    def _count_one(self) -> None:
        self.num_updates += 1
        self._move_targets()

    def _make_optimizers(self, is_scaled: bool) -> list[Adam]:
        return [
            Adam(self.config, own.stop - own.start, self.device, is_scaled, group.clip_norm, group.decays)
            for own, group in zip(self.passes.slices, self.algo.groups, strict=True)
        ]

    def _move_targets(self, made: int = 1) -> None:
        for count in range(self.num_updates - made + 1, self.num_updates + 1):
            due = [(own, share) for own, rule in self.rules if (share := share_at(rule, count))]
            for own, share in due:
                self.state.target[own].lerp_(self.state.weights[own], share)
            self.num_moves += bool(due)

    def _in_parts(self, gradient_of: GradientOf, batch: Batch, draws: Draws, which: int) -> Gradient:
        if self.num_parts == 1:
            return gradient_of(batch, draws, which)
        rows = num_rows(batch)
        parts = parts_of(rows, self.num_parts)
        shares = [rows_of(batch, draws, *part) for part in parts]
        each = [gradient_of(rows, drawn, which) for rows, drawn in shares]
        return summed(each, [count / rows for _, count in parts])

    def by_modules(self, batch: Batch, draws: Draws, which: int) -> Gradient:
        """For eager updates: networks whose tensors are views of the vectors cost less than handing them the views."""
        passes, part = self.passes, self.algo.losses[which]

        def forward(module: Any, *given: Any, **named: Any) -> Tensor:
            if module is passes.net and not torch.is_grad_enabled():
                module = passes.eval_net
            with passes.cast():
                out: Tensor = module(*given, **named)
            return out.float()

        loss, outcome = part.function(forward, passes.net, passes.target_net, batch, draws, self.hyper)
        params = [one for group in part.groups for one in passes.params[group]]
        each = torch.autograd.grad(passes.scaled(self.state, part.groups[0], loss), params, materialize_grads=True)
        return Gradient(torch.cat([one.reshape(-1) for one in each]), loss.detach(), outcome)

    def _gradient_compiled(self, batch: Batch, draws: Draws, which: int) -> Gradient:
        gradient, loss, *outcome = self._compiled[which](*self.args(batch, draws))
        return Gradient(gradient, loss, self.algo.outcome(*outcome) if outcome else None)

    def _refuse_workers(self) -> None:
        if self.gradient_by != self.gradient:
            raise ConfigError("compiled updates need learner.workers=1. Train with --compile off.")


def unrolled(updates: int, most: int = MOST_UNROLLED) -> int:
    """The most updates that one graph may hold and that divide so many; at most `most`."""
    return max(n for n in range(1, min(most, MOST_UNROLLED) + 1) if updates % n == 0)


def _stacked(each: Sequence[Updated]) -> tuple[Tensor, Tensor]:
    """Losses and norms, a place for each."""
    return torch.stack([done.loss for done in each]), torch.stack([done.norm for done in each])


def summed(each: Sequence[Gradient], shares: Sequence[float]) -> Gradient:
    """The gradient of all rows from the gradients of parts, whose shares of the rows add up to 1."""
    if len(each) == 1:
        return each[0]
    vector, loss = each[0].vector * shares[0], each[0].loss * shares[0]
    for part, share in zip(each[1:], shares[1:], strict=True):
        vector, loss = vector.add_(part.vector, alpha=share), loss + part.loss * share
    outcome = each[0].outcome
    if outcome is not None:
        outcome = type(outcome).joined([part.outcome for part in each], shares)
    return Gradient(vector, loss, outcome)
