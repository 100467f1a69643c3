"""More than one process for the gradient of each batch: a share of the rows each, one optimiser step by the leader.

Everybody works from the same weights, so the result is that of one worker with the whole batch. There is no lock: the leader
raises `GIVEN` when shares may be read, each helper its own count when its gradient may be, and nobody writes what the other
still reads.

On the CPU all live in the same vectors. Workers with a device each are apart: weights, shares and gradients go through the shared
memory, each row only to the device that trains on it, and statistics of BatchNorm, each worker's of its own rows, are averaged.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from freewheel.algos.algo import Batch, Draws, Outcome
from freewheel.errors import ConfigError, FreewheelError
from freewheel.learners.nested import leaves, mapped, moved, num_rows, parts_of, rows_of
from freewheel.learners.room import Room, opened
from freewheel.learners.step import Gradient, Step, Updated, summed
from freewheel.memory.counter import Counters
from freewheel.memory.segment import Segment, format_bytes
from freewheel.report.processes import is_alive

GIVEN = 0  # the counter of batches given out; counter i is that of the batches worker i has done
# How often a waiting side looks whether the other one is still there.
LOOK_EVERY_S = 0.25
# What stands in place of a helper's pid after an error, and in the leader's after `dismiss`.
LEFT = -1


class Team:
    """The shared memory of `num_workers` workers of one policy, made by the supervisor for a step of these shapes.

    `batch` and `draws` are an example of one update's (not stacked). Worker 0 leads, the others help. `is_apart`: each has a
    device of its own. Hand it to child processes as a `Process` argument (forkserver or spawn).
    """

    def __init__(
        self, num_workers: int, step: Step, batch: Batch, draws: Draws, num_actions: int, is_apart: bool = False
    ) -> None:
        self.num_workers, self.num_rows, self.is_apart = num_workers, num_rows(batch), is_apart
        if not 2 <= num_workers <= self.num_rows:
            raise ConfigError(
                f"learner.workers={num_workers} must be at least 2 and at most learner.batch_size={self.num_rows}: "
                "each needs a row."
            )
        if not is_apart:
            refuse_shared_statistics(step.net)
        room = Room()
        self._vectors = {name: room.take((step.flat.size,)) for name in ("weights", "target")}
        self._facts = room.take((num_workers,), torch.int64)  # pids
        self._scale = room.take(())
        self._moves = room.take((), torch.int64)  # of the target
        self._batch = mapped(batch, room.like)
        self._draws = mapped(draws, room.like)
        rows = self.num_rows
        self._outcome = [room.take(shape) for shape in ((rows,), (rows, num_actions), (rows,))]
        self._gradients = [room.take((step.flat.num_params,)) for _ in range(1, num_workers)]
        self._losses = room.take((num_workers,))
        num_buffers = step.flat.size - step.flat.num_params if is_apart else 0
        self._buffers = [room.take((num_buffers,)) for _ in range(1, num_workers) if num_buffers]
        self.segment = Segment.create(room.num_bytes, "the team of workers", "Lower learner.workers.")
        self.counters = Counters(num_workers)
        self._open()

    def _open(self) -> None:
        at = opened(self.segment)
        self.weights, self.target = (at(self._vectors[name]) for name in ("weights", "target"))
        self.pids, self.scale, self.losses = at(self._facts), at(self._scale), at(self._losses)
        self.moves, self.buffers = at(self._moves), [at(place) for place in self._buffers]
        self.batch, self.draws = mapped(self._batch, at), mapped(self._draws, at)
        self.outcome = Outcome(*(at(place) for place in self._outcome))
        self.gradients = [at(place) for place in self._gradients]

    def __getstate__(self) -> dict[str, Any]:
        kept = ("num_workers", "num_rows", "is_apart", "segment", "counters")
        return {name: value for name, value in vars(self).items() if name in kept or name.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._open()

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
        """Wakes the helpers and lets them go."""
        self.pids[0] = LEFT
        self.counters.add(GIVEN)


class TeamStep:
    """The leader's side: from now on the step's gradients come from the whole team, and its vectors are the shared ones.

    `update` is the step's own. An update that a helper does not answer within `timeout_s` raises, with nothing changed.
    So does the death of a helper, unless `may_wait` says that another one will come; it is asked whenever a helper is
    waited for, several times a second. Where one may come, a helper that is late is told of by `late`, and waited for again.
    `mark` hears when the waiting begins (True) and ends.
    """

    def __init__(
        self,
        step: Step,
        team: Team,
        timeout_s: float = 60.0,
        may_wait: Callable[[], bool] = lambda: False,
        late: Callable[[int], None] = lambda worker: None,
        mark: Callable[[bool], None] = lambda is_waiting: None,
    ) -> None:
        if step.is_compiled or (step.device.type != "cpu" and not team.is_apart):
            raise ConfigError(
                "more than one worker takes eager updates, on the CPU or on a device each: --compile off --learner.device cpu."
            )
        self.step, self.team, self.timeout_s = step, team, timeout_s
        self.may_wait, self.late, self.mark = may_wait, late, mark
        if team.is_apart:
            self._moves_given = -1
            pin_where_possible(step, team)
        else:
            team.weights.copy_(step.state.weights)
            team.target.copy_(step.state.target)
            step.live_in(team.weights, team.target)
        team.lead()
        step.gradient_by = self.gradient

    def update(self, batch: Batch, draws: Draws, lr: float) -> Updated:
        return self.step.update(batch, draws, lr)

    def gradient(self, batch: Batch, draws: Draws) -> Gradient:
        """Of the whole batch: gives the shares out, works off the first, adds up."""
        team = self.team
        (_, mine), *others = shares = team.shares
        # Only what the helpers read: the leader's rows come first and stay where they are.
        for shared, given in zip(leaves(team.batch), leaves(batch), strict=True):
            shared[mine:].copy_(given[mine:])
        for name, given in draws.items():
            team.draws[name].copy_(given)
        team.scale.copy_(self.step.state.scale)
        if team.is_apart:
            self._give_weights()
        number = team.counters.value(GIVEN) + 1
        team.counters.add(GIVEN)  # pairs with the helpers' wait: weights and shares are there
        own = self.step.gradient(*on_device(self.step, *rows_of(batch, draws, 0, mine)))
        self.mark(True)
        for worker in range(1, team.num_workers):
            self._wait_for(worker, number)
        self.mark(False)
        each, device = [own], self.step.device
        for worker, (first, count) in enumerate(others, 1):
            # These copies wait: until they are done no helper may write the next gradient, nor the replay the rows above.
            outcome = Outcome(*(rows.narrow(0, first, count).to(device) for rows in team.outcome))
            each.append(Gradient(team.gradients[worker - 1].to(device), team.losses[worker].to(device), outcome))
        if team.buffers:
            self._average_statistics([count / team.num_rows for _, count in others])
        return summed(each, [count / team.num_rows for _, count in shares])

    def _give_weights(self) -> None:
        """As they are by now; the target only after it moved. The first time both: a checkpoint may have been loaded before."""
        team, step = self.team, self.step
        team.weights.copy_(step.state.weights)
        if self._moves_given != step.num_moves:
            team.target.copy_(step.state.target)
            team.moves += 1
            self._moves_given = step.num_moves

    def _average_statistics(self, shares: list[float]) -> None:
        _, own = self.step.flat.split(self.step.state.weights)
        before = own.clone()
        for other, share in zip(self.team.buffers, shares, strict=True):
            own.add_(other.to(own.device) - before, alpha=share)  # exact where all are the same, as counts are

    def _wait_for(self, worker: int, number: int) -> None:
        """Sleeps until the worker, or the one that takes its place, has done the batch."""
        team = self.team
        deadline = time.monotonic() + self.timeout_s
        while True:
            left = deadline - time.monotonic()
            is_done = team.counters.wait(worker, number, max(min(left, LOOK_EVERY_S), 0.0))
            pid = int(team.pids[worker])
            if is_done:
                return
            may_wait = self.may_wait()
            if pid == LEFT and not may_wait:
                raise FreewheelError(f"learner worker {worker} ended with an error; its own message says which.")
            if pid > 0 and not may_wait and not is_alive(pid):
                raise FreewheelError(f"learner worker {worker} (pid {pid}) died before it gave its gradient.")
            if left <= 0 and may_wait:
                self.late(worker)
                deadline = time.monotonic() + self.timeout_s
            elif left <= 0:
                who = (
                    f"learner worker {worker} (pid {pid})"
                    if pid > 0
                    else f"learner worker {worker}, which never began,"
                )
                raise FreewheelError(
                    f"{who} gave no gradient within {self.timeout_s:.0f} s. Lower learner.workers, or look for what holds it."
                )


def help_train(
    team: Team, index: int, step: Step, is_stopping: Callable[[], bool], tell: Callable[[str], None] = lambda note: None
) -> None:
    """A helper's loop: the gradient of its share of each batch, until it is dismissed or stopped.

    It may come in place of another one: what that has not done of the newest batch, it does anew. Leaders may change too.
    `tell` takes what the user should read.
    """
    moves = -1
    if team.is_apart:
        pin_where_possible(step, team)
    else:
        step.live_in(team.weights, team.target)
    team.pids[index] = os.getpid()
    first, count = team.shares[index]
    done = team.counters.value(index)
    try:
        while not is_stopping():
            if not team.counters.wait(GIVEN, done + 1, LOOK_EVERY_S):
                continue
            if team.pids[0] == LEFT:
                return
            # After a leader that died in between there may be more than one: only the newest is still there.
            done = team.counters.value(GIVEN)
            step.state.scale.copy_(team.scale)
            if team.is_apart:
                step.state.weights.copy_(team.weights)
                if moves != int(team.moves):
                    moves = int(team.moves)
                    step.state.target.copy_(team.target)
            gradient = step.gradient(*on_device(step, *rows_of(team.batch, team.draws, first, count)))
            team.gradients[index - 1].copy_(gradient.vector)
            if team.buffers:
                team.buffers[index - 1].copy_(step.flat.split(step.state.weights)[1])
            team.losses[index] = gradient.loss
            for shared, own in zip(team.outcome, gradient.outcome, strict=True):
                shared.narrow(0, first, count).copy_(own)
            team.counters.add(index, done - team.counters.value(index))  # pairs with the leader's wait: all is written
            while step.notes:
                tell(step.notes.pop(0))
    except BaseException:
        team.pids[index] = LEFT
        raise


def fastest(
    candidates: Mapping[int, Callable[[], None]], rounds: int = 5, calls: int = 10
) -> tuple[int, dict[int, float]]:
    """The number of workers whose calls take the shortest, and the seconds of one call for each.

    In turn, so that a busy moment meets all of them; the best round counts, as others only add what is foreign to it.
    """
    best = dict.fromkeys(candidates, float("inf"))
    for call in candidates.values():
        call()  # the first allocates
    for _ in range(rounds):
        for count, call in candidates.items():
            begun = time.perf_counter()
            for _ in range(calls):
                call()
            best[count] = min(best[count], (time.perf_counter() - begun) / calls)
    return min(best, key=lambda count: best[count]), best


def on_device(step: Step, batch: Batch, draws: Draws) -> tuple[Batch, Draws]:
    """Where the step computes: from the shared memory, and from there alone what it trains on."""
    if step.device.type == "cpu":
        return batch, draws
    return moved(batch, step.device), moved(draws, step.device)


def pin_where_possible(step: Step, team: Team) -> None:
    """What cannot be pinned is copied too, only more slowly."""
    if step.device.type == "cuda" and not team.pin():
        step.notes.append(
            f"the memory that the workers share ({format_bytes(team.segment.num_bytes)}) could not be pinned; copies to "
            f"{step.device} take longer. Raise the limit on locked memory: ulimit -l unlimited."
        )


def refuse_shared_statistics(net: nn.Module) -> None:
    for name, module in net.named_modules():
        norm = nn.modules.batchnorm
        if isinstance(module, norm._BatchNorm) or (isinstance(module, norm._NormBase) and module.track_running_stats):
            raise ConfigError(
                f"the network's {name} is a {type(module).__name__}, whose statistics would be those of one worker's rows. "
                "Set learner.workers=1, or another net.norm."
            )
