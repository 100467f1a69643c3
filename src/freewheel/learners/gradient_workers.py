"""More than one process for the gradient of each batch: a share of the rows each, one optimiser update by the leader.

Everybody works from the same weights, so the result is that of one worker with the whole batch. There is no lock: the leader
raises `GIVEN` when shares may be read, each worker its own count when its gradient may be, and no process writes what another
still reads.

On the CPU all live in the same vectors. Workers with a device each are apart: weights, shares and gradients go through the shared
memory, each row only to the device that trains on it, and statistics of BatchNorm, each worker's of its own rows, are averaged.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from freewheel.contracts import Batch, Draws
from freewheel.errors import ConfigError, FreewheelError
from freewheel.learners.passes import Gradient
from freewheel.learners.shared_tensors import SharedTensors
from freewheel.learners.update import Update, summed
from freewheel.machine.process import is_alive
from freewheel.memory.counter import Counters
from freewheel.memory.nested import leaves, num_rows, parts_of, rows_of
from freewheel.memory.segment import format_bytes

GIVEN = 0  # the counter of batches given out; counter i is that of the batches worker i has done
# How often a waiting side looks whether the other one is still there.
LOOK_EVERY_S = 0.25
# Stands for a worker's pid after an error, and for the leader's after `dismiss`.
LEFT = -1


class WorkersMemory(SharedTensors):
    """The shared memory of `num_workers` workers of one policy, made by the supervisor for an update of these shapes.

    `batch` and `draws` are an example of one update's (not stacked). Worker 0 leads, the others help. `is_apart`: each has a
    device of its own.
    """

    handed = (*SharedTensors.handed, "num_workers", "num_rows", "is_apart", "counters")

    def __init__(self, num_workers: int, update: Update, batch: Batch, draws: Draws, is_apart: bool = False) -> None:
        self.num_workers, self.num_rows, self.is_apart = num_workers, num_rows(batch), is_apart
        if not 2 <= num_workers <= self.num_rows:
            raise ConfigError(
                f"learner.workers={num_workers} must be at least 2 and at most learner.batch_size={self.num_rows}: "
                "each needs a row."
            )
        if not is_apart:
            refuse_shared_statistics(update.passes.net)
        state, others = update.state, self.shares[1:]
        params, buffers = update.flat.split(state.weights)
        number = torch.empty((), dtype=torch.int64)
        examples = {
            "weights": state.weights,  # first: see `pin`
            "target": state.target,
            "pids": torch.empty(num_workers, dtype=torch.int64),
            "scale": state.scale,
            "moves": number,  # of the target
            "batch": batch,
            "draws": draws,
            "which": number,  # of the losses
            "hyper": update.hyper,
            "outcomes": [
                [list(outcome or ()) for outcome in outcomes_of(update, batch, draws, *share)] for share in others
            ],
            "gradients": [params] * len(others),
            "losses": torch.empty(num_workers),
            "buffers": [buffers] * len(others) if is_apart and len(buffers) else [],
        }
        self.counters = Counters(num_workers)
        self._make(examples, "the gradient workers", "Lower learner.workers.")

    @property
    def shares(self) -> list[tuple[int, int]]:
        """(first row, rows) of each worker."""
        return parts_of(self.num_rows, self.num_workers)

    def pin(self, cuda: Any = torch.cuda) -> bool:
        """Locks the calling process's view of the memory, so that a CUDA device copies from and to it directly; False if that is refused."""
        first = self.weights.data_ptr()  # they lie at its begin
        return int(cuda.cudart().cudaHostRegister(first, self.segment.num_bytes, 0)) == 0

    def lead(self) -> None:
        """The calling process gives out the batches from now on."""
        self.pids[0] = os.getpid()

    def dismiss(self) -> None:
        """Wakes the workers and lets them go."""
        self.pids[0] = LEFT
        self.counters.add(GIVEN)


class SharedGradients:
    """The leader's side: from now on the update's gradients come from all workers, and its vectors are the shared ones.

    `update` is the update's own. An update that a worker does not answer within `timeout_s` raises, with nothing changed.
    So does the death of a worker, unless `may_wait` says that another one will come; it is asked whenever a worker is
    waited for, several times a second. Where one may come, `late` is called with a worker that is late, and the leader waits for it again.
    `mark` hears when the waiting begins (True) and ends.
    """

    def __init__(
        self,
        update: Update,
        memory: WorkersMemory,
        timeout_s: float = 60.0,
        may_wait: Callable[[], bool] = lambda: False,
        late: Callable[[int], None] = lambda worker: None,
        mark: Callable[[bool], None] = lambda is_waiting: None,
    ) -> None:
        if update.is_compiled or (update.device.type != "cpu" and not memory.is_apart):
            raise ConfigError(
                "more than one worker takes eager updates, on the CPU or on a device each: --compile off --learner.device cpu."
            )
        self.update, self.memory, self.timeout_s = update, memory, timeout_s
        self.may_wait, self.late, self.mark = may_wait, late, mark
        if memory.is_apart:
            self._moves_given = -1
            pin_where_possible(update, memory)
        else:
            memory.weights.copy_(update.state.weights)
            memory.target.copy_(update.state.target)
            update.live_in(memory.weights, memory.target)
        memory.lead()
        update.gradient_by = self.gradient

    def gradient(self, batch: Batch, draws: Draws, which: int = 0) -> Gradient:
        """Of a loss over the whole batch: gives out the shares, computes the first one itself, adds up."""
        memory = self.memory
        (_, mine), *others = shares = memory.shares
        # Only what the workers read: the leader's rows come first and stay where they are. Workers work out target values themselves.
        seen = {name: batch[name] for name in memory.batch}
        for shared, given in zip(leaves(memory.batch), leaves(seen), strict=True):
            shared[mine:].copy_(given[mine:])
        for name, given in draws.items():
            memory.draws[name].copy_(given)
        memory.scale.copy_(self.update.state.scale)
        memory.which.fill_(which)
        for name, value in self.update.hyper.items():
            memory.hyper[name].copy_(value)
        if memory.is_apart:
            self._give_weights()
        number = memory.counters.value(GIVEN) + 1
        memory.counters.add(GIVEN)  # pairs with the workers' wait: weights and shares are there
        own = self.update.gradient(*self.update.on_device(*rows_of(batch, draws, 0, mine)), which)
        self.mark(True)
        for worker in range(1, memory.num_workers):
            self._wait_for(worker, number)
        self.mark(False)
        each, device = [own], self.update.device
        for worker in range(1, memory.num_workers):
            # These copies wait: until they are done no worker may write the next gradient, nor the replay the rows above.
            found = [part.to(device, copy=True) for part in memory.outcomes[worker - 1][which]]
            size = len(own.vector)
            vector, loss = memory.gradients[worker - 1][:size].to(device), memory.losses[worker].to(device)
            each.append(Gradient(vector, loss, self.update.algo.outcome(*found) if found else None))
        if memory.buffers:
            self._average_statistics([count / memory.num_rows for _, count in others])
        return summed(each, [count / memory.num_rows for _, count in shares])

    def _give_weights(self) -> None:
        """The newest weights, and the target after it has moved. The first time both: a checkpoint may have been loaded before."""
        memory, update = self.memory, self.update
        memory.weights.copy_(update.state.weights)
        if self._moves_given != update.num_moves:
            memory.target.copy_(update.state.target)
            memory.moves.add_(1)
            self._moves_given = update.num_moves

    def _average_statistics(self, shares: list[float]) -> None:
        _, own = self.update.flat.split(self.update.state.weights)
        before = own.clone()
        for other, share in zip(self.memory.buffers, shares, strict=True):
            own.add_(other.to(own.device) - before, alpha=share)  # exact where all are the same, as counts are

    def _wait_for(self, worker: int, number: int) -> None:
        """Sleeps until the worker, or the one that takes its place, has done the batch."""
        memory, deadline = self.memory, time.monotonic() + self.timeout_s
        while not memory.counters.wait(worker, number, max(min(deadline - time.monotonic(), LOOK_EVERY_S), 0.0)):
            is_late = time.monotonic() >= deadline
            if self.may_wait():
                if is_late:
                    self.late(worker)
                    deadline = time.monotonic() + self.timeout_s
                continue
            pid = int(memory.pids[worker])
            who = f"learner worker {worker}" + (f" (pid {pid})" if pid > 0 else "")
            if pid == LEFT:
                raise FreewheelError(f"{who} ended with an error; its own message says which.")
            if pid > 0 and not is_alive(pid):
                raise FreewheelError(f"{who} died before it gave its gradient.")
            if is_late:
                raise FreewheelError(
                    f"{who}{'' if pid > 0 else ', which never began,'} gave no gradient within {self.timeout_s:.0f} s. "
                    "Lower learner.workers, or find out what holds it up."
                )


def outcomes_of(update: Update, batch: Batch, draws: Draws, first: int, count: int) -> list[Any]:
    """The outcome of each loss for a share of the rows, as an example of its shapes. Statistics of BatchNorm stay as they were."""
    rows = update.on_device(*rows_of(batch, draws, first, count))
    _, statistics = update.flat.split(update.state.weights)
    before = statistics.clone()
    found = [update.gradient(*rows, which).outcome for which in range(len(update.algo.losses))]
    statistics.copy_(before)
    return found


def work(
    memory: WorkersMemory,
    index: int,
    update: Update,
    is_stopping: Callable[[], bool],
    tell: Callable[[str], None] = lambda note: None,
) -> None:
    """A worker's loop: the gradient of its share of each batch, until it is dismissed or stopped.

    It may replace another worker: it does the newest batch again if that one had not finished it. Leaders may change too.
    `tell` takes what the user should read.
    """
    moves = -1
    if memory.is_apart:
        pin_where_possible(update, memory)
    else:
        update.live_in(memory.weights, memory.target)
    memory.pids[index] = os.getpid()
    done = memory.counters.value(index)
    try:
        while not is_stopping():
            if not memory.counters.wait(GIVEN, done + 1, LOOK_EVERY_S):
                continue
            if memory.pids[0] == LEFT:
                return
            # After a leader that died in between there may be more than one: only the newest is still there.
            done = memory.counters.value(GIVEN)
            moves = _take_given(memory, update, moves)
            _give_gradient(memory, index, update)
            # Pairs with the leader's wait: all is written.
            memory.counters.add(index, done - memory.counters.value(index))
            while update.notes:
                tell(update.notes.pop(0))
    except BaseException:
        memory.pids[index] = LEFT
        raise


def _take_given(memory: WorkersMemory, update: Update, moves: int) -> int:
    """Copies what the leader works with; gives the moves of the target that were seen."""
    update.state.scale.copy_(memory.scale)
    for name, value in memory.hyper.items():
        update.hyper[name].copy_(value)
    if not memory.is_apart:
        return moves
    update.state.weights.copy_(memory.weights)
    if moves != int(memory.moves):
        update.state.target.copy_(memory.target)
    return int(memory.moves)


def _give_gradient(memory: WorkersMemory, index: int, update: Update) -> None:
    """Of the worker's share of the batch."""
    which = int(memory.which)
    rows, draws = update.on_device(*rows_of(memory.batch, memory.draws, *memory.shares[index]))
    gradient = update.gradient(rows, draws, which)
    memory.gradients[index - 1][: len(gradient.vector)].copy_(gradient.vector)
    if memory.buffers:
        memory.buffers[index - 1].copy_(update.flat.split(update.state.weights)[1])
    memory.losses[index] = gradient.loss
    for shared, own in zip(memory.outcomes[index - 1][which], gradient.outcome or (), strict=True):
        shared.copy_(own)


def pin_where_possible(update: Update, memory: WorkersMemory) -> None:
    """Memory that is not pinned is copied too, only more slowly."""
    if update.device.type == "cuda" and not memory.pin():
        update.notes.append(
            f"the memory that the workers share ({format_bytes(memory.segment.num_bytes)}) could not be pinned; copies to "
            f"{update.device} take longer. Raise the limit on locked memory: ulimit -l unlimited."
        )


def refuse_shared_statistics(net: nn.Module) -> None:
    for name, module in net.named_modules():
        norm = nn.modules.batchnorm
        if isinstance(module, norm._BatchNorm) or (isinstance(module, norm._NormBase) and module.track_running_stats):
            raise ConfigError(
                f"the network's {name} is a {type(module).__name__}, whose statistics would come from one worker's rows alone. "
                "Set learner.workers=1, or another net.norm."
            )
