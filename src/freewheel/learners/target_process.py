"""The target network's outputs for the next batches, computed by another process while the learner trains.

The target stands still between its moves, so its pass over a batch needs nothing of the updates before it. No process waits: a learner
whose values are not there yet, or are of a target that has moved since, computes them itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from freewheel.learners.package import Function
from freewheel.learners.shared_tensors import SharedTensors
from freewheel.learners.update import Update
from freewheel.memory.counter import Counters
from freewheel.memory.nested import Drawn, Nested, leaves
from freewheel.memory.replay import ReplayMemory

# Batches shown before they are trained on. One would do if the other process always had a core; two cover its pauses.
DEPTH = 2
SLOTS = DEPTH + 1  # those shown, and the one that is trained on
# Counters: batches shown; twice the moves of the target, odd while it moves; of each group of each slot, the stamp of its values.
SHOWN, MOVES, FIRST_SLOT = range(3)
LOOK_EVERY_S = 0.5


class TargetValues(SharedTensors):
    """The shared memory of a learner and its target process. The learner shows batches before they are trained on, and takes the
    values that are there in time.

    `seen` and `later` are an example of the target network's inputs for one call of the update, and of its outputs;
    one batch serves `num_groups` calls.
    `package` is the compiled function, once there is one: (target, *leaves of seen) to the values of later.
    """

    handed = (*SharedTensors.handed, "package", "counters", "num_groups")
    share = 0.0  # of this learner's newest calls, those whose target values were there
    _moves_seen = 0

    def __init__(self, target: Tensor, seen: Nested, later: Nested, num_groups: int) -> None:
        self.num_groups, self.package = num_groups, ""
        self.counters = Counters(FIRST_SLOT + SLOTS * num_groups)
        examples = {"target": target, "seen": [[seen] * num_groups] * SLOTS, "later": [[later] * num_groups] * SLOTS}
        self._make(examples, "the batches to come", "Set local.target_process to False.")

    def move(self, target: Tensor) -> None:
        """The learner's target is another one from now on."""
        self.counters.add(MOVES, 1 + self.counters.value(MOVES) % 2)  # odd, also after a learner that died in between
        self.target.copy_(target)
        self.counters.add(MOVES)  # pairs with the look before and after the other process's pass

    def show(self, seen: Sequence[Nested]) -> int:
        """One more batch, group by group; its number, for `found`."""
        number = self.counters.value(SHOWN) + 1
        for slot, group in zip(self.seen[number % SLOTS], seen, strict=True):
            for shared, given in zip(leaves(slot), leaves(group), strict=True):
                shared.copy_(given)
        self.counters.add(SHOWN)  # pairs with the other process's wait: the batch is there
        return number

    def begin(self, update: Update, memory: ReplayMemory) -> None:
        """From now on the learner shows batches before they are trained on."""
        self._moves_seen = update.num_moves
        self.move(update.state.target)
        memory.draw_ahead(DEPTH, self._show_drawn)

    def follow(self, update: Update) -> None:
        """Before a batch is shown, which wakes the other process: it works with the target as it is from then on."""
        if self._moves_seen != update.num_moves:
            self._moves_seen = update.num_moves
            self.move(update.state.target)

    def take(self, drawn: Drawn, group: int, update: Update) -> Nested | None:
        """The values, if they are there and the target has not moved within the batch."""
        if drawn.ahead is None or self._moves_seen != update.num_moves:
            return None
        found = self.found(drawn.ahead, group)
        self.share += 0.01 * ((found is not None) - self.share)
        return found

    def _show_drawn(self, drawn: Drawn) -> None:
        drawn.ahead = self.show([Update.target_inputs(*one) for one in zip(drawn.given, drawn.draws, strict=True)])

    def found(self, number: int, group: int) -> Nested | None:
        """The values of a group of a batch that was shown, if they are there and of the target as it is."""
        is_done = self.is_done(number, group, self.counters.value(MOVES))
        return self.later[number % SLOTS][group] if is_done else None

    def is_done(self, number: int, group: int, moves: int) -> bool:
        return self.counters.value(self.counter(number, group)) == stamp(number, moves)

    def counter(self, number: int, group: int) -> int:
        return FIRST_SLOT + number % SLOTS * self.num_groups + group


def work_ahead(ahead: TargetValues, function: Function, is_stopping: Callable[[], bool]) -> None:
    """The other process's loop: values for the batches shown, the oldest that the learner may still want first.

    Values of a target that has moved since are computed again, also of the batch that is trained on: its later groups come in time.
    """
    counters = ahead.counters
    shown = 0
    while not is_stopping():
        if not counters.wait(SHOWN, shown + 1, LOOK_EVERY_S):
            continue
        shown = counters.value(SHOWN)
        for number in range(max(shown - DEPTH, 1), shown + 1):
            for group in range(ahead.num_groups):
                moves = counters.value(MOVES)
                if moves % 2 == 0 and not ahead.is_done(number, group, moves):
                    _work(ahead, function, number, group, moves)


def _work(ahead: TargetValues, function: Function, number: int, group: int, moves: int) -> None:
    slot = number % SLOTS
    found = function(ahead.target, *leaves(ahead.seen[slot][group]))
    for shared, value in zip(ahead.later[slot][group].values(), found, strict=True):
        shared.copy_(value)
    counters, counter = ahead.counters, ahead.counter(number, group)
    if counters.value(MOVES) == moves:  # else the target moved under the pass
        # Pairs with `found`: the values are there.
        counters.add(counter, stamp(number, moves) - counters.value(counter))


def stamp(number: int, moves: int) -> int:
    """Says of a group's values which batch and which target they are of; never falls."""
    return (number << 24) + (moves & (1 << 24) - 1)
