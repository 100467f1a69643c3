"""Workers with a device each: they share no vectors, and make the update of one worker all the same. The CPU stands in for the devices."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from test_gradient_workers import NOISY, check_equal, never
from test_update import make, rows

from freewheel.config import LearnerConfig
from freewheel.errors import ConfigError
from freewheel.learners import out_of_memory as memory
from freewheel.learners.gradient_workers import SharedGradients, WorkersMemory, pin_where_possible, work
from freewheel.learners.update import Update


def memory_of(count: int, update: Update, num_rows: int) -> WorkersMemory:
    draws = update.algo.draws(num_rows, torch.Generator())
    return WorkersMemory(count, update, rows(0, num_rows), draws, is_apart=True)


@contextmanager
def at_work(shared: WorkersMemory, steps: list[Update], notes: list[str] | None = None) -> Iterator[None]:
    tell = (notes if notes is not None else []).append
    each = [threading.Thread(target=work, args=(shared, i, update, never, tell)) for i, update in enumerate(steps, 1)]
    for thread in each:
        thread.start()
    try:
        yield
    finally:
        shared.dismiss()
        for thread in each:
            thread.join(20)
            assert not thread.is_alive()


@pytest.mark.parametrize(("count", "algo", "accumulate"), [(2, "dqn", 1), (3, "iqn", 1), (2, "iqn", 2)])
def test_workers_apart_make_the_update_of_one(count: int, algo: str, accumulate: int) -> None:
    config = LearnerConfig(target_every_updates=2, tau=0.5, accumulate=accumulate)
    leader, *others = [make(config, NOISY, algo) for _ in range(count)]
    for other in others:  # what they begin with does not count: weights and target come from the leader
        other.state.weights.normal_()
        other.state.target.normal_()
    shared = memory_of(count, leader, 17)
    with at_work(shared, others):
        check_equal(make(config, NOISY, algo), SharedGradients(leader, shared), 17)
    addresses = {update.state.weights.data_ptr() for update in (leader, *others)} | {shared.weights.data_ptr()}
    assert len(addresses) == count + 1


def test_weights_and_target_of_a_checkpoint_that_was_loaded_later_reach_the_workers() -> None:
    config = LearnerConfig(target_every_updates=1000)
    alone, leader, other = (make(config) for _ in range(3))
    shared = memory_of(2, leader, 12)
    together = SharedGradients(leader, shared)
    generator = torch.Generator().manual_seed(5)
    for name, tensor in alone.tensors().items():
        if name.startswith(("net.", "target.")):
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
        leader.tensors()[name].copy_(tensor)
    with at_work(shared, [other]):
        check_equal(alone, together, 12)


def test_one_that_comes_in_place_of_another_has_the_target_of_now() -> None:
    config = LearnerConfig(target_every_updates=2)
    alone, leader, first, second = (make(config) for _ in range(4))
    shared = memory_of(2, leader, 12)
    together = SharedGradients(leader, shared)
    thread = threading.Thread(target=work, args=(shared, 1, first, lambda: alone.num_updates == 3))
    thread.start()
    for i in range(3):
        batch = rows(i, 12)
        together.update(batch, {}, {"lr": 1e-2})
        alone(batch, {}, {"lr": 1e-2})
    thread.join(20)
    with at_work(shared, [second]):
        expected, given = alone(rows(9, 12), {}, {"lr": 1e-2}), together.update(rows(9, 12), {}, {"lr": 1e-2})
    torch.testing.assert_close(given.outcome, expected.outcome, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(given.norm, expected.norm, rtol=1e-4, atol=1e-5)


def test_batchnorm_goes_by_each_workers_rows_and_its_statistics_are_averaged() -> None:
    """The gradient is that of the same batch worked off in as many parts."""
    parts = make(LearnerConfig(accumulate=2), norm="batch")
    leader, other = make(norm="batch"), make(norm="batch")
    before = leader.flat.split(leader.state.weights)[1].clone()
    batch = rows(3, 16)
    seen, told = [], []
    for first in (0, 8):
        half = make(norm="batch")
        told.append(half.gradient({name: tensor[first : first + 8] for name, tensor in batch.items()}, {}).outcome)
        seen.append(half.flat.split(half.state.weights)[1].clone())
    assert not torch.equal(seen[0], before)
    shared = memory_of(2, leader, 16)
    together = SharedGradients(leader, shared)
    with at_work(shared, [other]):
        expected, given = parts.gradient(batch, {}), together.gradient(batch, {})
    torch.testing.assert_close(given.vector, expected.vector, rtol=1e-4, atol=1e-6)
    # Each worker chooses and values by the statistics as they were; the second of two parts sees those of the first.
    torch.testing.assert_close(given.outcome, type(given.outcome).in_order(told), rtol=1e-4, atol=1e-5)
    _, own = leader.flat.split(leader.state.weights)
    torch.testing.assert_close(own, (seen[0] + seen[1]) / 2, rtol=1e-5, atol=1e-6)
    counts = [view for name, view in leader.flat.buffer_views(own).items() if name.endswith("num_batches_tracked")]
    assert counts
    assert all(count.item() == 1.0 for count in counts)


def test_a_worker_whose_memory_runs_out_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    leader, other = make(), make()
    whole = other.by_modules

    def short(batch: Any, *rest: Any) -> Any:
        if len(batch["reward"]) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB.")
        return whole(batch, *rest)

    monkeypatch.setattr(other, "by_modules", short)
    assert memory.is_shortage(torch.OutOfMemoryError("x"))
    notes: list[str] = []
    shared = memory_of(2, leader, 16)
    with at_work(shared, [other], notes):
        check_equal(make(), SharedGradients(leader, shared), 16, num_updates=2)
    assert len(notes) == 1
    assert "is split into 2 parts from now on" in notes[0]


def test_a_batch_for_workers_stays_on_the_host_and_each_share_goes_to_its_device() -> None:
    update, seen = make(device="meta"), []

    def gradient(batch: Any, draws: Any, which: int) -> Any:
        seen.append({tensor.device.type for tensor in batch.values()})
        moved, _ = update.on_device(batch, draws)
        seen.append({tensor.device.type for tensor in moved.values()})
        return update.gradient(moved, draws)

    update.gradient_by = gradient
    update(rows(0), {}, {"lr": 1e-3})
    assert seen == [{"cpu"}, {"meta"}]


def test_workers_in_shared_vectors_is_refused_off_the_cpu() -> None:
    shared = WorkersMemory(2, make(), rows(0, 8), {})
    with pytest.raises(ConfigError, match="on the CPU or on a device each"):
        SharedGradients(make(device="meta"), shared)


class Runtime:
    def __init__(self, answer: int) -> None:
        self.answer, self.asked = answer, tuple[int, ...]()

    def cudart(self) -> Runtime:
        return self

    def cudaHostRegister(self, first: int, count: int, flags: int) -> int:
        self.asked = (first, count, flags)
        return self.answer


def test_all_of_the_shared_memory_is_pinned_and_a_refusal_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    update = make()
    shared = memory_of(2, update, 8)
    runtime = Runtime(0)
    assert shared.pin(runtime)
    assert runtime.asked == (shared.weights.data_ptr(), shared.segment.num_bytes, 0)
    assert not shared.pin(Runtime(2))
    update.device = torch.device("cuda:1")
    monkeypatch.setattr(WorkersMemory, "pin", lambda self: False)
    pin_where_possible(update, shared)
    assert "could not be pinned; copies to cuda:1 take longer" in update.notes[0]


@pytest.mark.parametrize("row", [0, -1])
def test_a_skipped_update_leaves_the_statistics_of_every_worker(row: int) -> None:
    """Whoever of the two has the bad row."""
    leader, other = make(norm="batch"), make(norm="batch")
    shared = memory_of(2, leader, 16)
    together = SharedGradients(leader, shared)
    bad = rows(1, 16)
    bad["obs"][row] = float("nan")
    with at_work(shared, [other]):
        for batch in (rows(0, 16), bad):
            before = leader.state.weights.clone()
            together.update(batch, {}, {"lr": 1e-3})
        torch.testing.assert_close(leader.state.weights, before, rtol=0, atol=0)
        given = together.update(rows(2, 16), {}, {"lr": 1e-3})
    assert given.loss.isfinite()
    assert other.state.weights.isfinite().all()
    assert leader.state.weights.isfinite().all()
