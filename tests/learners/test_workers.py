"""A team of workers makes the update of one worker with the whole batch, and says who is missing."""

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
from test_step import make, rows

from freewheel.config import LearnerConfig, QConfig
from freewheel.errors import ConfigError, FreewheelError
from freewheel.learners import workers
from freewheel.learners.step import Step
from freewheel.learners.workers import Team, TeamStep, fastest, help_train

NOISY = QConfig(noisy=True, num_taus=6, num_target_taus=5, num_act_taus=4)


def never() -> bool:
    return False


def made(count: int, config: LearnerConfig | None = None, algo: str = "dqn", num_rows: int = 17) -> tuple[Step, Team]:
    step = make(config, NOISY, algo)
    draws = step.algo.draws(num_rows, torch.Generator())
    return step, Team(count, step, rows(0, num_rows), draws, num_actions=2)


@contextmanager
def helpers(team: Team, **more: Any) -> Iterator[None]:
    """In threads: the same counters and memory, without the time a process takes to start."""
    each = [
        threading.Thread(target=help_train, args=(team, i, make(q=NOISY, **more), never))
        for i in range(1, team.num_workers)
    ]
    for thread in each:
        thread.start()
    try:
        yield
    finally:
        team.dismiss()
        for thread in each:
            thread.join(20)
            assert not thread.is_alive()


def check_equal(alone: Step, leader: TeamStep, num_rows: int, num_updates: int = 6) -> None:
    generator = torch.Generator().manual_seed(1)
    for i in range(num_updates):
        batch, draws = rows(i, num_rows), alone.algo.draws(num_rows, generator)
        expected, given = alone.update(batch, draws, 1e-2), leader.update(batch, draws, 1e-2)
        torch.testing.assert_close(given.loss, expected.loss, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(given.norm, expected.norm, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(given.outcome, expected.outcome, rtol=1e-3, atol=1e-4)
    for name, tensor in leader.step.tensors().items():
        torch.testing.assert_close(tensor, alone.tensors()[name], rtol=1e-3, atol=2e-5, msg=name)


@pytest.mark.parametrize(
    ("count", "num_rows", "algo", "accumulate"),
    [(2, 16, "dqn", 1), (2, 17, "dqn", 4), (3, 17, "iqn", 1), (3, 16, "iqn", 2), (3, 3, "dqn", 1)],
)
def test_a_team_equals_one_worker_with_the_whole_batch(count: int, num_rows: int, algo: str, accumulate: int) -> None:
    config = LearnerConfig(target_every_updates=2, tau=0.5, accumulate=accumulate)
    step, team = made(count, config, algo, num_rows)
    leader = TeamStep(step, team)
    with helpers(team, algo=algo, config=config):
        check_equal(make(config, NOISY, algo), leader, num_rows)


def test_several_updates_a_call_and_a_scaled_loss_are_shared_too() -> None:
    config = LearnerConfig(target_every_updates=3)
    alone, step, helper = (make(config, unrolled=2, precision="fp16") for _ in range(3))
    for each in (alone, step, helper):
        each._dtype = None  # the scaler with float32's numbers
    step.state.scale.fill_(64.0)
    team = Team(2, step, rows(0, 9), {}, num_actions=2)
    leader = TeamStep(step, team)
    thread = threading.Thread(target=help_train, args=(team, 1, helper, never))
    thread.start()
    for i in range(3):
        batch = {name: torch.stack([tensor, tensor + 1]) for name, tensor in rows(i, 9).items()}
        batch["action"] %= 2
        expected, given = alone.update(batch, {}, 1e-2), leader.update(batch, {}, 1e-2)
        torch.testing.assert_close(given.norm, expected.norm, rtol=1e-4, atol=1e-5)
    team.dismiss()
    thread.join(20)
    torch.testing.assert_close(step.state.weights, alone.state.weights, rtol=1e-3, atol=2e-5)
    torch.testing.assert_close(step.state.target, alone.state.target, rtol=1e-3, atol=2e-5)


def help_in_a_process(team: Team, index: int, algo: str) -> None:
    torch.set_num_threads(1)
    help_train(team, index, make(q=NOISY, algo=algo), never)


def start(team: Team, index: int, algo: str = "dqn") -> mp.process.BaseProcess:
    process = mp.get_context("forkserver").Process(target=help_in_a_process, args=(team, index, algo), daemon=True)
    process.start()
    return process


def end(process: mp.process.BaseProcess) -> int | None:
    process.join(20)
    code = process.exitcode
    process.close()  # type: ignore[attr-defined]
    return code


def test_processes_share_the_work_and_end_when_dismissed() -> None:
    step, team = made(2, algo="iqn")
    leader = TeamStep(step, team)
    helper = start(team, 1, "iqn")
    check_equal(make(q=NOISY, algo="iqn"), leader, 17, num_updates=20)
    team.dismiss()
    assert end(helper) == 0


def test_a_killed_helper_is_named_and_its_successor_takes_its_place() -> None:
    step, team = made(2)
    leader = TeamStep(step, team, timeout_s=30)
    helper = start(team, 1)
    draws = step.algo.draws(17, torch.Generator())
    leader.update(rows(0, 17), draws, 1e-3)
    assert helper.pid
    os.kill(helper.pid, signal.SIGKILL)
    before = step.state.weights.clone()
    with pytest.raises(FreewheelError, match=rf"worker 1 \(pid {helper.pid}\) died"):
        leader.update(rows(1, 17), draws, 1e-3)
    torch.testing.assert_close(step.state.weights, before, rtol=0, atol=0)
    end(helper)
    helper = start(team, 1)
    leader.may_wait = lambda: True  # until it is there the dead one stands in the table
    alone = make(q=NOISY)
    for name, tensor in alone.tensors().items():
        tensor.copy_(step.tensors()[name])
    expected, given = alone.update(rows(2, 17), draws, 1e-3), leader.update(rows(2, 17), draws, 1e-3)
    torch.testing.assert_close(given.outcome, expected.outcome, rtol=1e-3, atol=1e-4)
    team.dismiss()
    assert end(helper) == 0


def test_a_helper_that_never_comes_is_named_at_the_deadline() -> None:
    step, team = made(2)
    with pytest.raises(FreewheelError, match="worker 1, which never began, gave no gradient within 0 s"):
        TeamStep(step, team, timeout_s=0.2).update(rows(0, 17), step.algo.draws(17, torch.Generator()), 1e-3)


def test_an_error_in_a_helper_reaches_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    step, team = made(2)
    leader, helper = TeamStep(step, team), make(q=NOISY)
    monkeypatch.setattr(helper, "gradient", lambda *given: 1 / 0)
    errors = []

    def helping() -> None:
        try:
            help_train(team, 1, helper, never)
        except ZeroDivisionError as error:
            errors.append(str(error))

    thread = threading.Thread(target=helping)
    thread.start()
    draws = step.algo.draws(17, torch.Generator())
    with pytest.raises(FreewheelError, match="worker 1 ended with an error"):
        leader.update(rows(0, 17), draws, 1e-3)
    thread.join(20)
    assert len(errors) == 1
    with pytest.raises(FreewheelError, match="worker 1 ended with an error"):
        leader.update(rows(0, 17), draws, 1e-3)


def test_an_update_waits_for_the_successor_of_a_killed_helper() -> None:
    """Also of one that ended with an error, and of one that was killed while the leader changed."""
    step, team = made(2)
    looks: list[mp.process.BaseProcess] = []

    def replace() -> bool:
        if not looks:
            team.pids[1] = workers.LEFT  # the second reason to be replaced, after the first: never having come
            looks.append(start(team, 1))
        return True

    leader = TeamStep(step, team, timeout_s=30, may_wait=replace)
    alone = make(q=NOISY)
    check_equal(alone, leader, 17, num_updates=3)
    (helper,) = looks
    assert helper.pid
    os.kill(helper.pid, signal.SIGKILL)
    end(helper)
    looks.clear()
    leader = TeamStep(step, team, timeout_s=30, may_wait=replace)
    check_equal(alone, leader, 17, num_updates=3)
    team.dismiss()
    assert end(looks[0]) == 0


def test_a_helper_goes_when_it_is_told_to() -> None:
    _, team = made(2)
    help_train(team, 1, make(q=NOISY), lambda: True)
    assert team.pids[1] == os.getpid()


def test_what_a_team_cannot_do_is_refused() -> None:
    step = make(norm="batch")
    with pytest.raises(ConfigError, match=r"norm0 is a BatchNorm1d.*learner.workers=1"):
        Team(2, step, rows(0), {}, num_actions=2)
    for count in (1, 17):
        with pytest.raises(ConfigError, match=f"learner.workers={count} must be at least 2"):
            Team(count, make(), rows(0), {}, num_actions=2)
    step, team = made(2)
    TeamStep(step, team)
    with pytest.raises(ConfigError, match="learner.workers=1 alone"):
        step.compile(rows(0), {})


def test_the_fastest_count_is_the_one_with_the_best_round(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(workers.time, "perf_counter", lambda: now[0])
    times = {1: iter([9, 3, 3, 9, 9]), 2: iter([9, 4, 4, 2, 2])}  # the first call of each does not count

    def spend(count: int) -> None:
        now[0] += next(times[count])

    best, seconds = fastest({count: lambda count=count: spend(count) for count in (1, 2)}, rounds=2, calls=2)  # type: ignore[misc]
    assert best == 2
    assert seconds == {1: 3.0, 2: 2.0}


def test_a_helper_that_is_late_is_told_of_and_waited_for_again() -> None:
    step, team = make(), None
    batch, draws = rows(0, 17), step.algo.draws(17, torch.Generator())
    team = Team(2, step, batch, draws, 2)
    other, late, marks = make(), list[int](), list[bool]()
    threads: list[threading.Thread] = []

    def begin(worker: int) -> None:
        """The one that takes the place of who was told of."""
        late.append(worker)
        threads.append(threading.Thread(target=help_train, args=(team, 1, other, lambda: False)))
        threads[-1].start()

    leader = TeamStep(step, team, 0.3, may_wait=lambda: True, late=begin, mark=marks.append)
    leader.update(batch, draws, 1e-3)
    team.dismiss()
    threads[0].join(10)
    assert late[:1] == [1]
    assert marks == [True, False]
