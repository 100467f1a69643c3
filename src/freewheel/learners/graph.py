"""The updates of one call as functions of tensors alone: what is compiled into a graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from freewheel.contracts import Batch, Draws, Hyper
from freewheel.learners.optimizer import State
from freewheel.learners.package import Function
from freewheel.memory.nested import Nested, filled, leaves, mapped, moved, nth, num_rows, parts_of, rows_of

if TYPE_CHECKING:
    from freewheel.learners.update import Update


class Updated(NamedTuple):
    """Each update's loss and norm of the gradient before clipping (with several losses one for each); the outcome."""

    loss: Tensor
    norm: Tensor
    outcome: Any


def functions_of(update: Update, batch: Batch, draws: Draws) -> list[tuple[Function, list[Tensor]]]:
    """What is compiled, each with arguments as it will be called with: the updates, then `look_ahead` where there is one.

    Of a batch that is worked off in parts, the gradient of a part, one for each loss.
    """
    if update.device.type != "cpu":
        batch, draws = moved(batch, update.device), moved(draws, update.device)
    if update.is_by_parts:
        if update.unrolled > 1:
            batch, draws = nth(batch, 0), nth(draws, 0)
        batch, draws = rows_of(batch, draws, *parts_of(num_rows(batch), update.config.accumulate)[0])
        args = update.args(update.state, batch, draws)
        return [(_part_function(update, which, batch, draws), args) for which in range(len(update.algo.losses))]
    if not update.has_lookahead:
        return [(_whole_function(update, batch, draws), update.args(update.state, batch, draws))]
    seen = seen_ahead(batch, draws)
    full = {**batch, **look_ahead(update, update.state.target, seen)}

    def ahead(target: Tensor, *given: Tensor) -> list[Tensor]:
        return list(look_ahead(update, target, filled(seen, iter(given))).values())

    return [
        (_whole_function(update, full, draws), update.args(update.state, full, draws)),
        (ahead, [update.state.target, *leaves(seen)]),
    ]


def _whole_function(update: Update, batch: Batch, draws: Draws) -> Function:
    def function(*given: Tensor) -> list[Tensor]:
        loss, norm, outcome = _graph(update, *_unpacked(update, given, batch, draws))
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


def _graph(update: Update, state: State, hyper: Hyper, batch: Batch, draws: Draws) -> Updated:
    """A function of nothing but its arguments."""
    each = []
    for i in range(update.unrolled):
        rows, drawn = (batch, draws) if update.unrolled == 1 else (nth(batch, i), nth(draws, i))
        found = []
        for which in range(len(update.algo.losses)):
            gradient = update.passes.by_vectors(state, which, rows, drawn, hyper)
            found.append(update.apply(state, hyper, which, gradient))
        each.append(side_by_side(found))
        if update.moves_in_graph:
            _move_targets(update, state)
    return update.in_order(each)


def _move_targets(update: Update, state: State) -> None:
    # Counted by the steps of a group, of which each update makes one for each of the group's losses.
    group = update.algo.losses[0].group
    steps = sum(loss.group == group for loss in update.algo.losses)
    updates = state.updates if state.updates.ndim == 0 else state.updates[group]
    updates = updates if steps == 1 else updates // steps
    for own, rule in update.rules:
        if rule is not None:
            moves = (updates % rule.every_updates == 0).float() * rule.tau
            state.target[own].lerp_(state.weights[own], moves)


def look_ahead(update: Update, target: Tensor, seen: Nested) -> dict[str, Tensor]:
    """What the target network says of the next states, in one pass over the rows of all updates, unless each has noise of its own.

    Contiguous, as shared memory has it: a compiled update takes every argument for laid out like its example.
    """
    assert update.algo.lookahead is not None
    look = partial(update.algo.lookahead.function, update.passes.by_views, update.flat.views(target))
    with torch.no_grad():
        if update.unrolled == 1:
            found = look(seen, seen)
        elif "target_noise" in seen:
            each = [look(nth(seen, i), nth(seen, i)) for i in range(update.unrolled)]
            found = {name: torch.stack([one[name] for one in each]) for name in each[0]}
        else:
            rows = mapped(seen, lambda tensor: tensor.flatten(0, 1))
            found = {name: out.view(update.unrolled, -1, *out.shape[1:]) for name, out in look(rows, rows).items()}
    return {name: tensor.contiguous() for name, tensor in found.items()}


def seen_ahead(batch: Batch, draws: Draws) -> dict[str, Any]:
    """What the target network is shown, contiguous: stacks that share frames lie otherwise in the replay than with the target process."""
    seen = {"next_obs": batch["next_obs"]} | {name: draw for name, draw in draws.items() if name.startswith("target_")}
    return mapped(seen, lambda tensor: tensor.contiguous())


def side_by_side(losses: Sequence[Updated]) -> Updated:
    """One update's losses and norms, a place for each; its outcome is that of the first loss."""
    if len(losses) == 1:
        return losses[0]
    loss, norm = torch.stack([done.loss for done in losses]), torch.stack([done.norm for done in losses])
    return Updated(loss, norm, losses[0].outcome)
