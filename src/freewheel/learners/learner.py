"""The learner: takes lessons from memory, makes their updates, publishes the weights."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from freewheel.config import Config
from freewheel.contracts import Algo
from freewheel.learners.optimizer import check_finite, lr_at
from freewheel.learners.target_process import TargetValues
from freewheel.learners.update import Update, Updated
from freewheel.machine.device import use_of
from freewheel.memory.dials import Dials
from freewheel.memory.lanes import Bootstraps
from freewheel.memory.nested import Drawn, leaves, moved
from freewheel.report.ledger import Page
from freewheel.report.phases import COUNTERS, PHASES
from freewheel.weights.board import Publisher

SAMPLE, TRANSFER, COMPUTE, WAIT_WORKERS, PRIORITIES, PUBLISH = (
    PHASES.index(name) for name in ("sample", "transfer", "compute", "wait_workers", "priorities", "publish")
)
BEATS, UPDATES, SAMPLES = (COUNTERS.index(name) for name in ("beats", "updates", "samples"))


class Learner:
    """Trains one policy. `turn` gives a lesson if one is due; weights are published and counted between lessons.

    `version` is that of the weights as actors know it: the publisher's, or without one what was learned so far.
    """

    def __init__(
        self,
        algo: Algo,
        update: Update,
        memory: Any,
        pace: Any,
        config: Config,
        *,
        publisher: Publisher | None = None,
        bootstraps: Bootstraps | None = None,
        dials: Dials | None = None,
        page: Page | None = None,
    ) -> None:
        self.algo, self.update, self.memory, self.pace, self.config = algo, update, memory, pace, config
        self.publisher, self.bootstraps = publisher, bootstraps
        self.last: Updated | None = None
        self.lr, self.hyper = config.learner.lr, dict[str, float]()
        self.update_s = 0.0  # of one update, newest lesson
        self._update_times: deque[float] = deque(maxlen=15)
        self._versions = 0
        self.version = 0
        self._dials, self._dial_version = dials, -1
        if hasattr(memory, "dials"):
            memory.dials = dials
        self._dial_lr: float | None = None
        self._enter: Callable[[int], None] = page.enter if page else _nothing
        self._count: Callable[[int, int], None] = page.count if page else _nothing
        self.targets: TargetValues | None = None
        # In sequential a batch that was drawn before its time would be missing from a checkpoint.
        # Gradient workers move their rows to devices of their own.
        is_ahead = update.device.type == "cuda" and config.runtime == "local" and config.learner.workers < 2
        self._transfer: Transfer | None = None
        if is_ahead and hasattr(memory, "draw_ahead"):
            self._transfer = Transfer(update.device)
            memory.draw_ahead(1, self._transfer.start)

    @property
    def updates(self) -> int:
        return self.update.num_updates

    def fetch(self, step: int = 0) -> bool:
        """For a policy that acts in the learner's own process: there is nothing to copy."""
        return False

    def begin(self, is_again: bool) -> None:
        """Before the first turn. A learner that replaces another does not know which rows that one had."""
        if is_again:
            self.memory.skip()
        self.pace.begin(is_again)
        self.publish()

    def turn(self) -> bool:
        if not self.pace.due():
            self._offer(waits=True)  # the last lesson's weights may have been too early
            return False
        self._enter(SAMPLE)
        share_done = self.pace.share_done(self.config.steps)
        lesson = self.memory.lesson(share_done, self.version, self.bootstraps)
        if lesson is None:
            self.pace.learned(0, self.memory)
            return True
        before = self.updates
        self._learn(lesson, share_done)
        done = self.updates - before
        self._versions += lesson.num_versions
        if self.publisher is None:
            self.version = self._versions
        self._count(UPDATES, done)
        self._count(SAMPLES, self.memory.num_samples)
        self._offer(waits=False)
        self.pace.learned(done, self.memory)
        return True

    def wait(self) -> None:
        self.pace.wait_to_learn()

    def publish(self) -> None:
        """Whatever is due: at the begin and the end of a run."""
        if self.publisher is not None:
            self._enter(PUBLISH)
            self.publisher.publish(self.update.state.weights, self.updates)
            self.version = self.publisher.version

    def _offer(self, waits: bool) -> None:
        if self.publisher is not None and self.publisher.is_due(self.updates):
            self._enter(PUBLISH)
            self.publisher.offer(self.update.state.weights, self.updates, waits)
            self.version = self.publisher.version

    def _learn(self, lesson: Any, share_done: float) -> None:
        algo, update, enter = self.algo, self.update, self._enter
        begun, before = time.perf_counter(), update.num_updates
        self.hyper = algo.hyper(share_done)
        # The newest rows come last: the metrics are theirs.
        prepared = [algo.prepare(rows, self, rows is lesson.rows[0]) for rows in reversed(lesson.rows)]
        batches = lesson.batches(prepared[::-1])
        while True:
            enter(SAMPLE)
            if self.targets is not None:
                self.targets.follow(update)
            drawn = next(batches, None)
            if drawn is None:
                break
            given = self._on_device(drawn)
            enter(COMPUTE)
            each = []
            for i, one in enumerate(given):
                self._count(BEATS, 1)
                self.lr = self._lr_at(share_done)
                ahead = None if self.targets is None else self.targets.take(drawn, i, update)
                each.append(update(one, drawn.draws[i], {"lr": self.lr, **self.hyper}, ahead))
            self.last = each[-1]
            if self.memory.has_priorities:
                enter(PRIORITIES)
            lesson.learned(drawn, [done.outcome for done in each])
        if lesson.rows:
            algo.observe(lesson.rows[0], self)
        self.update_s = (time.perf_counter() - begun) / max(update.num_updates - before, 1)
        self._update_times.append(self.update_s)
        check_finite(update.state, self.updates, self.lr)

    @property
    def usual_update_s(self) -> float:
        """The median of the newest lessons: any one may have been interrupted by other programs."""
        times = sorted(self._update_times)
        return times[len(times) // 2] if times else 0.0

    def mark_workers(self, is_waiting: bool) -> None:
        """Within an update: it begins or ends to wait for the gradients of other workers."""
        self._enter(WAIT_WORKERS if is_waiting else COMPUTE)

    def use_targets(self, targets: TargetValues) -> None:
        """From now on another process is shown the batches before they are trained on."""
        self.targets = targets
        targets.begin(self.update, self.memory)

    def take_warning(self) -> str:
        """What looked wrong about the first rows, once."""
        warning, self.memory.warning = self.memory.warning or "", self.memory.warning and ""
        return warning

    def take_notes(self) -> list[str]:
        """What the user should read about the updates, once."""
        notes, self.update.notes = self.update.notes, []
        return notes

    def metrics(self) -> dict[str, float]:
        """For the log: of the newest update. What looks wrong becomes a note."""
        own = self.memory.metrics()
        if self.last is None:
            return {}
        loss, norm, outcome = self.last
        each = zip(self.algo.losses, loss.reshape(-1, len(self.algo.losses)).mean(0).tolist(), strict=True)
        found = {
            **{one.name: mean for one, mean in each},
            "loss": loss.mean().item(),
            "grad_norm": norm.mean().item(),
            "lr": self.lr,
            **self.hyper,
            **outcome.metrics(),
            **self.algo.metrics(),
            **own,
            **use_of(self.update.device),
            **({"target_process_share": self.targets.share} if self.targets else {}),
        }
        self.update.notes += [f"warning: {text}." for text in self.algo.warnings(found)]
        return found

    def tensors(self) -> dict[str, Tensor]:
        """Weights, target, optimiser and statistics, over their own memory."""
        return {**self.update.tensors(), **self.algo.stats()}

    def state(self) -> dict[str, Any]:
        found = {"updates": self.updates, **self.pace.state()}
        return found | ({"version": self._versions} if self._versions != self.updates else {})

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.update.num_updates = int(state["updates"])
        self.version = self._versions = int(state.get("version", state["updates"]))

    def close(self) -> None:
        self.memory.close()

    def _lr_at(self, share_done: float) -> float:
        if self._dials is not None and self._dials.version != self._dial_version:
            self._dial_version = self._dials.version
            self._dial_lr = self._dials.value("lr")
        asked = self._dial_lr
        return lr_at(self.config.learner, self.update.num_updates, share_done) if asked is None else asked

    def _on_device(self, drawn: Any) -> Any:
        if self._transfer is None:
            return drawn.given
        self._enter(TRANSFER)
        return self._transfer.finish(drawn)


class Transfer:
    """Copies a batch to a CUDA device, by a stream of its own, while the one before it is trained on.

    From pinned memory, which may be used again once `finish` has returned.
    """

    def __init__(self, device: torch.device, cuda: Any = torch.cuda) -> None:
        self.device, self._cuda = device, cuda
        self._stream = cuda.Stream(device)

    def start(self, drawn: Drawn) -> None:
        """Does not wait: neither for the copy nor for what the device is computing."""
        with self._cuda.stream(self._stream):
            copies = [moved(group, self.device) for group in drawn.given]
            done = self._cuda.Event()
            done.record(self._stream)
        drawn.ahead = copies, done

    def finish(self, drawn: Drawn) -> list[dict[str, Any]]:
        """Waits for the copy, which began a batch ago; what is computed from it is the computing stream's from then on."""
        copies: list[dict[str, Any]]
        copies, done = drawn.ahead
        done.synchronize()
        computing = self._cuda.current_stream(self.device)
        for group in copies:
            for tensor in leaves(group):
                tensor.record_stream(computing)  # its memory is not given away while that stream reads it
        return copies


def _nothing(*_: int) -> None:
    """Where there is no ledger."""
