"""How many processes compute a learner's gradients: as the settings say, or as many as are fastest here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from freewheel.errors import ConfigError
from freewheel.learners.gradient_workers import SharedGradients, WorkersMemory
from freewheel.learners.learner import Learner
from freewheel.machine import worker_count
from freewheel.machine.process import is_alive
from freewheel.memory.nested import nth
from freewheel.run.channel import Channel

# The first updates are slower than later ones.
LOOK_AFTER = 20


def make_workers(learner: Learner, asked: int, cores: int, is_apart: bool = False) -> WorkersMemory | None:
    """Shared memory for as many workers as may be needed, with a device each if `is_apart`; None if there can only be one."""
    workers = asked or min(cores, learner.algo.batch_rows)
    if workers < 2 or learner.config.learner.compile == "on" or not learner.memory.has_fixed_size:
        return None
    try:
        return WorkersMemory(workers, learner.update, *one_update(learner), is_apart)
    except ConfigError:
        if asked:
            raise
        return None


def one_update(learner: Learner) -> tuple[Any, Any]:
    """An example of one update's batch and draws."""
    batch, draws = learner.memory.example()
    return (nth(batch, 0), nth(draws, 0)) if learner.update.unrolled > 1 else (batch, draws)


class WorkerControl:
    """The learner's side. With learner.workers=0 they are tried once an update takes long enough.

    `may_wait` says whether the supervisor replaces a dead worker. A worker without a gradient for `timeout_s` is reported and replaced.
    """

    def __init__(
        self,
        learner: Learner,
        memory: WorkersMemory | None,
        channel: Channel,
        may_wait: Callable[[], bool],
        timeout_s: float = 60.0,
    ) -> None:
        self._learner, self._memory, self._channel = learner, memory, channel
        self._may_wait, self._timeout_s = may_wait, timeout_s
        self._is_open = memory is not None  # not decided yet
        self._has_asked = False
        self._together: SharedGradients | None = None
        if memory is not None and learner.config.learner.workers > 1:
            self._together = self._joined(memory)
            self._is_open = False

    def rest(self) -> None:
        """Workers pause while updates are compiled: a compiled update takes one process."""
        if self._together is not None:
            self._learner.update.gradient_by = self._learner.update.gradient

    def go_on(self) -> None:
        """After `rest`."""
        if self._together is not None:
            self._learner.update.gradient_by = self._together.gradient

    def look(self) -> None:
        """Called now and then between lessons."""
        learner, memory = self._learner, self._memory
        if learner.update.is_compiled:
            return
        self.go_on()  # a compiled update that failed is an eager one again
        if not self._is_open or memory is None or learner.updates < LOOK_AFTER:
            return
        if not self._has_asked:
            self._has_asked = True
            self._is_open = learner.usual_update_s >= worker_count.LEAST_S
            if self._is_open:
                self._ask_for_workers(memory)
            return
        if bool((memory.pids[1:] > 0).all()):
            self._is_open = False
            self._measure(memory)

    def close(self) -> None:
        """Ends the workers for good."""
        self._together, self._is_open = None, False
        if self._memory is not None:
            self._memory.dismiss()

    def _joined(self, memory: WorkersMemory) -> SharedGradients:
        return SharedGradients(
            self._learner.update,
            memory,
            self._timeout_s,
            self._may_wait,
            late=lambda worker: self._channel.send({"late_worker": worker}),
            mark=self._learner.mark_workers,
        )

    def _ask_for_workers(self, memory: WorkersMemory) -> None:
        """Workers of an earlier learner may still live; the dead ones are forgotten."""
        memory.lead()
        for worker in range(1, memory.num_workers):
            if not is_alive(int(memory.pids[worker])):
                memory.pids[worker] = 0
        self._channel.send({"workers": memory.num_workers - 1})

    def _measure(self, memory: WorkersMemory) -> None:
        step = self._learner.update
        batch, draws = one_update(self._learner)
        together = self._joined(memory)
        choice = worker_count.choose(
            memory.num_workers,
            lambda: step.gradient(batch, draws),
            lambda: together.gradient(batch, draws),
            self._learner.update_s,
        )
        if choice.chosen == 1:
            step.gradient_by = step.gradient
            memory.dismiss()
        else:
            self._together = together
        self._channel.send({"note": choice.reason})
