"""Several workers make the update of one worker with the whole batch, and says who is missing."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from test_update import make, rows

from freewheel.config import LearnerConfig, QConfig
from freewheel.errors import ConfigError, FreewheelError
from freewheel.learners.gradient_workers import LEFT, SharedGradients, WorkersMemory, work
from freewheel.learners.update import Update

NOISY = QConfig(noisy=True, num_taus=6, num_target_taus=5, num_act_taus=4)


def never() -> bool:
    return False


def made(
    count: int, config: LearnerConfig | None = None, algo: str = "dqn", num_rows: int = 17
) -> tuple[Update, WorkersMemory]:
    update = make(config, NOISY, algo)
    draws = update.algo.draws(num_rows, torch.Generator())
    return update, WorkersMemory(count, update, rows(0, num_rows), draws)


@contextmanager
def workers(shared: WorkersMemory, **more: Any) -> Iterator[None]:
    """In threads: the same counters and memory, without the time a process takes to start."""
    each = [
        threading.Thread(target=work, args=(shared, i, make(q=NOISY, **more), never))
        for i in range(1, shared.num_workers)
    ]
    for thread in each:
        thread.start()
    try:
        yield
    finally:
        shared.dismiss()
        for thread in each:
            thread.join(20)
            assert not thread.is_alive()


def check_equal(alone: Update, leader: SharedGradients, num_rows: int, num_updates: int = 6) -> None:
    generator = torch.Generator().manual_seed(1)
    for i in range(num_updates):
        batch, draws = rows(i, num_rows), alone.algo.draws(num_rows, generator)
        expected, given = alone(batch, draws, {"lr": 1e-2}), leader.update(batch, draws, {"lr": 1e-2})
        torch.testing.assert_close(given.loss, expected.loss, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(given.norm, expected.norm, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(given.outcome, expected.outcome, rtol=1e-3, atol=1e-4)
    for name, tensor in leader.update.tensors().items():
        torch.testing.assert_close(tensor, alone.tensors()[name], rtol=1e-3, atol=2e-5, msg=name)


@pytest.mark.parametrize(
    ("count", "num_rows", "algo", "accumulate"),
    [(2, 16, "dqn", 1), (2, 17, "dqn", 4), (3, 17, "iqn", 1), (3, 16, "iqn", 2), (3, 3, "dqn", 1)],
)
def test_workers_equals_one_worker_with_the_whole_batch(count: int, num_rows: int, algo: str, accumulate: int) -> None:
    config = LearnerConfig(target_every_updates=2, tau=0.5, accumulate=accumulate)
    update, shared = made(count, config, algo, num_rows)
    leader = SharedGradients(update, shared)
    with workers(shared, algo=algo, config=config):
        check_equal(make(config, NOISY, algo), leader, num_rows)


def test_several_updates_a_call_and_a_scaled_loss_are_shared_too() -> None:
    config = LearnerConfig(target_every_updates=3)
    alone, update, worker = (make(config, unrolled=2, precision="fp16") for _ in range(3))
    for each in (alone, update, worker):
        each.passes._dtype = None  # the scaler with float32's numbers
    update.state.scale.fill_(64.0)
    shared = WorkersMemory(2, update, rows(0, 9), {})
    leader = SharedGradients(update, shared)
    thread = threading.Thread(target=work, args=(shared, 1, worker, never))
    thread.start()
    for i in range(3):
        batch = {name: torch.stack([tensor, tensor + 1]) for name, tensor in rows(i, 9).items()}
        batch["action"] %= 2
        expected, given = alone(batch, {}, {"lr": 1e-2}), leader.update(batch, {}, {"lr": 1e-2})
        torch.testing.assert_close(given.norm, expected.norm, rtol=1e-4, atol=1e-5)
    shared.dismiss()
    thread.join(20)
    torch.testing.assert_close(update.state.weights, alone.state.weights, rtol=1e-3, atol=2e-5)
    torch.testing.assert_close(update.state.target, alone.state.target, rtol=1e-3, atol=2e-5)


def work_in_a_process(shared: WorkersMemory, index: int, algo: str) -> None:
    torch.set_num_threads(1)
    work(shared, index, make(q=NOISY, algo=algo), never)


def start(shared: WorkersMemory, index: int, algo: str = "dqn") -> mp.process.BaseProcess:
    process = mp.get_context("forkserver").Process(target=work_in_a_process, args=(shared, index, algo), daemon=True)
    process.start()
    return process


def end(process: mp.process.BaseProcess) -> int | None:
    process.join(20)
    code = process.exitcode
    process.close()  # type: ignore[attr-defined]
    return code


def test_processes_share_the_work_and_end_when_dismissed() -> None:
    update, shared = made(2, algo="iqn")
    leader = SharedGradients(update, shared)
    worker = start(shared, 1, "iqn")
    check_equal(make(q=NOISY, algo="iqn"), leader, 17, num_updates=20)
    shared.dismiss()
    assert end(worker) == 0


def test_a_killed_worker_is_named_and_its_successor_takes_its_place() -> None:
    update, shared = made(2)
    leader = SharedGradients(update, shared, timeout_s=30)
    worker = start(shared, 1)
    draws = update.algo.draws(17, torch.Generator())
    leader.update(rows(0, 17), draws, {"lr": 1e-3})
    assert worker.pid
    os.kill(worker.pid, signal.SIGKILL)
    before = update.state.weights.clone()
    with pytest.raises(FreewheelError, match=rf"worker 1 \(pid {worker.pid}\) died"):
        leader.update(rows(1, 17), draws, {"lr": 1e-3})
    torch.testing.assert_close(update.state.weights, before, rtol=0, atol=0)
    end(worker)
    worker = start(shared, 1)
    leader.may_wait = lambda: True  # until it is there the dead one stands in the table
    alone = make(q=NOISY)
    for name, tensor in alone.tensors().items():
        tensor.copy_(update.tensors()[name])
    expected, given = alone(rows(2, 17), draws, {"lr": 1e-3}), leader.update(rows(2, 17), draws, {"lr": 1e-3})
    torch.testing.assert_close(given.outcome, expected.outcome, rtol=1e-3, atol=1e-4)
    shared.dismiss()
    assert end(worker) == 0


def test_a_worker_that_never_comes_is_named_at_the_deadline() -> None:
    update, shared = made(2)
    SharedGradients(update, shared, timeout_s=0.2)
    draws = update.algo.draws(17, torch.Generator())
    with pytest.raises(FreewheelError, match="worker 1, which never began, gave no gradient within 0 s"):
        update(rows(0, 17), draws, {"lr": 1e-3})


def test_an_error_in_a_worker_reaches_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    update, shared = made(2)
    leader, worker = SharedGradients(update, shared), make(q=NOISY)
    monkeypatch.setattr(worker, "gradient", lambda *given: 1 / 0)
    errors = []

    def working() -> None:
        try:
            work(shared, 1, worker, never)
        except ZeroDivisionError as error:
            errors.append(str(error))

    thread = threading.Thread(target=working)
    thread.start()
    draws = update.algo.draws(17, torch.Generator())
    with pytest.raises(FreewheelError, match="worker 1 ended with an error"):
        leader.update(rows(0, 17), draws, {"lr": 1e-3})
    thread.join(20)
    assert len(errors) == 1
    with pytest.raises(FreewheelError, match="worker 1 ended with an error"):
        leader.update(rows(0, 17), draws, {"lr": 1e-3})


def test_an_update_waits_for_the_successor_of_a_killed_worker() -> None:
    """Also of one that ended with an error, and of one that was killed while the leader changed."""
    update, shared = made(2)
    looks: list[mp.process.BaseProcess] = []

    def replace() -> bool:
        if not looks:
            shared.pids[1] = LEFT  # the second reason to be replaced, after the first: never having come
            looks.append(start(shared, 1))
        return True

    leader = SharedGradients(update, shared, timeout_s=30, may_wait=replace)
    alone = make(q=NOISY)
    check_equal(alone, leader, 17, num_updates=3)
    (worker,) = looks
    assert worker.pid
    os.kill(worker.pid, signal.SIGKILL)
    end(worker)
    looks.clear()
    leader = SharedGradients(update, shared, timeout_s=30, may_wait=replace)
    check_equal(alone, leader, 17, num_updates=3)
    shared.dismiss()
    assert end(looks[0]) == 0


def test_a_worker_goes_when_it_is_told_to() -> None:
    _, shared = made(2)
    work(shared, 1, make(q=NOISY), lambda: True)
    assert shared.pids[1] == os.getpid()


def test_what_workers_cannot_do_is_refused() -> None:
    update = make(norm="batch")
    with pytest.raises(ConfigError, match=r"norm0 is a BatchNorm1d.*learner.workers=1"):
        WorkersMemory(2, update, rows(0), {})
    for count in (1, 17):
        with pytest.raises(ConfigError, match=f"learner.workers={count} must be at least 2"):
            WorkersMemory(count, make(), rows(0), {})
    update, shared = made(2)
    SharedGradients(update, shared)
    with pytest.raises(ConfigError, match="compiled updates need learner.workers=1"):
        update.compile(rows(0), {})


def test_a_worker_that_is_late_is_told_of_and_waited_for_again() -> None:
    update = make()
    batch, draws = rows(0, 17), update.algo.draws(17, torch.Generator())
    shared = WorkersMemory(2, update, batch, draws)
    other, late, marks = make(), list[int](), list[bool]()
    threads: list[threading.Thread] = []

    def begin(worker: int) -> None:
        """The one that takes the place of who was told of."""
        late.append(worker)
        threads.append(threading.Thread(target=work, args=(shared, 1, other, lambda: False)))
        threads[-1].start()

    leader = SharedGradients(update, shared, 0.3, may_wait=lambda: True, late=begin, mark=marks.append)
    leader.update(batch, draws, {"lr": 1e-3})
    shared.dismiss()
    threads[0].join(10)
    assert late[:1] == [1]
    assert marks == [True, False]


def test_values_of_the_target_that_came_early_do_not_disturb_workers() -> None:
    """Updates that were compiled, with a target process, and are eager again: the workers' batch has no place for the values."""
    config = LearnerConfig(target_every_updates=2)
    alone, leader, other = (make(config) for _ in range(3))
    shared = WorkersMemory(2, leader, rows(0, 9), {})
    SharedGradients(leader, shared)
    leader.gradient_by, together = leader.gradient, leader.gradient_by  # they rest while updates are compiled
    leader._use([lambda *args: 1 / 0, lambda *args: 1 / 0])
    leader.go_back("the compiled update failed")
    leader.gradient_by = together
    thread = threading.Thread(target=work, args=(shared, 1, other, never))
    thread.start()
    try:
        for i in range(3):
            batch = rows(i, 9)
            leader(batch, {}, {"lr": 1e-2}, leader.lookahead(batch, {}))
            alone(batch, {}, {"lr": 1e-2})
    finally:
        shared.dismiss()
        thread.join(20)
    torch.testing.assert_close(leader.state.weights, alone.state.weights, rtol=1e-3, atol=2e-5)
