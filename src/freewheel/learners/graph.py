"""The updates of one call as functions of tensors alone, each of which is compiled into one graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from torch import Tensor

from freewheel.contracts import Batch, Draws, Hyper
from freewheel.learners.optimizer import State
from freewheel.learners.package import Function
from freewheel.learners.passes import Gradient
from freewheel.learners.target_rules import share_at
from freewheel.memory.nested import filled, leaves, nth, num_rows, parts_of, rows_of

if TYPE_CHECKING:
    from freewheel.learners.update import Update


def functions_of(update: Update, batch: Batch, draws: Draws) -> list[tuple[Function, list[Tensor]]]:
    """What is compiled, each with arguments as it will be called with: the updates, then `look_ahead` where there is one.

    For a batch that is split into parts: the gradient of a part, one for each loss.
    """
    batch, draws = update.on_device(batch, draws)
    if update.is_by_parts:
        if update.unrolled > 1:
            batch, draws = nth(batch, 0), nth(draws, 0)
        batch, draws = rows_of(batch, draws, *parts_of(num_rows(batch), update.config.accumulate)[0])
        args = update.args(batch, draws)
        return [(_part_function(update, which, batch, draws), args) for which in range(len(update.algo.losses))]
    if not update.has_lookahead:
        return [(_whole_function(update, batch, draws), update.args(batch, draws))]
    seen = update.target_inputs(batch, draws)
    full = {**batch, **update.look_ahead(update.state.target, seen)}

    def ahead(target: Tensor, *given: Tensor) -> list[Tensor]:
        return list(update.look_ahead(target, filled(seen, iter(given))).values())

    return [
        (_whole_function(update, full, draws), update.args(full, draws)),
        (ahead, [update.state.target, *leaves(seen)]),
    ]


def _whole_function(update: Update, batch: Batch, draws: Draws) -> Function:
    """The updates of one call."""

    def function(*given: Tensor) -> list[Tensor]:
        state, hyper, rows, drawn = _unpacked(update, given, batch, draws)

        def gradient(rows: Batch, drawn: Draws, which: int) -> Gradient:
            return update.passes.by_vectors(state, which, rows, drawn, hyper)

        def move_targets() -> None:
            if update.moves_in_graph:
                _move_targets(update, state)

        loss, norm, outcome = update.run(state, hyper, rows, drawn, gradient, move_targets)
        return [loss, norm, *outcome]

    return function


def _part_function(update: Update, which: int, batch: Batch, draws: Draws) -> Function:
    """The gradient of a part of a batch; statistics of the network change in place."""

    def function(*given: Tensor) -> list[Tensor]:
        state, hyper, rows, drawn = _unpacked(update, given, batch, draws)
        gradient, loss, outcome = update.passes.by_vectors(state, which, rows, drawn, hyper)
        return [gradient, loss, *(outcome or ())]

    return function


def _unpacked(update: Update, given: Sequence[Tensor], batch: Batch, draws: Draws) -> tuple[State, Hyper, Batch, Draws]:
    rest = iter(given)
    state = State(*(next(rest) for _ in fields(State)))
    hyper = {name: next(rest) for name in update.hyper}
    return state, hyper, filled(batch, rest), filled(draws, rest)


def _move_targets(update: Update, state: State) -> None:
    # Counted by the steps of a group: each update makes one for each of the group's losses.
    group = update.algo.losses[0].groups[0]
    steps = sum(group in loss.groups for loss in update.algo.losses)
    updates = state.updates if state.updates.ndim == 0 else state.updates[group]
    updates = updates if steps == 1 else updates // steps
    for own, rule in update.rules:
        state.target[own].lerp_(state.weights[own], share_at(rule, updates))
