"""Workers with a device each: they share no vectors, and make the update of one worker all the same. The CPU stands in for the devices."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from test_step import make, rows
from test_workers import NOISY, check_equal, never

from freewheel.config import LearnerConfig
from freewheel.errors import ConfigError
from freewheel.learners import memory
from freewheel.learners.step import Step
from freewheel.learners.workers import Team, TeamStep, help_train, on_device, pin_where_possible


def team_of(count: int, step: Step, num_rows: int) -> Team:
    draws = step.algo.draws(num_rows, torch.Generator())
    return Team(count, step, rows(0, num_rows), draws, num_actions=2, is_apart=True)


@contextmanager
def helped(team: Team, steps: list[Step], notes: list[str] | None = None) -> Iterator[None]:
    tell = (notes if notes is not None else []).append
    each = [threading.Thread(target=help_train, args=(team, i, step, never, tell)) for i, step in enumerate(steps, 1)]
    for thread in each:
        thread.start()
    try:
        yield
    finally:
        team.dismiss()
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
    team = team_of(count, leader, 17)
    with helped(team, others):
        check_equal(make(config, NOISY, algo), TeamStep(leader, team), 17)
    addresses = {step.state.weights.data_ptr() for step in (leader, *others)} | {team.weights.data_ptr()}
    assert len(addresses) == count + 1


def test_weights_and_target_of_a_checkpoint_that_was_loaded_later_reach_the_helpers() -> None:
    config = LearnerConfig(target_every_updates=1000)
    alone, leader, other = (make(config) for _ in range(3))
    team = team_of(2, leader, 12)
    together = TeamStep(leader, team)
    generator = torch.Generator().manual_seed(5)
    for name, tensor in alone.tensors().items():
        if name.startswith(("net.", "target.")):
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
        leader.tensors()[name].copy_(tensor)
    with helped(team, [other]):
        check_equal(alone, together, 12)


def test_one_that_comes_in_place_of_another_has_the_target_of_now() -> None:
    config = LearnerConfig(target_every_updates=2)
    alone, leader, first, second = (make(config) for _ in range(4))
    team = team_of(2, leader, 12)
    together = TeamStep(leader, team)
    thread = threading.Thread(target=help_train, args=(team, 1, first, lambda: alone.num_updates == 3))
    thread.start()
    for i in range(3):
        batch = rows(i, 12)
        together.update(batch, {}, 1e-2)
        alone.update(batch, {}, 1e-2)
    thread.join(20)
    with helped(team, [second]):
        expected, given = alone.update(rows(9, 12), {}, 1e-2), together.update(rows(9, 12), {}, 1e-2)
    torch.testing.assert_close(given.outcome, expected.outcome, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(given.norm, expected.norm, rtol=1e-4, atol=1e-5)


def test_batchnorm_goes_by_each_workers_rows_and_its_statistics_are_averaged() -> None:
    """The gradient is that of the same batch worked off in as many parts."""
    parts = make(LearnerConfig(accumulate=2), norm="batch")
    leader, other = make(norm="batch"), make(norm="batch")
    before = leader.flat.split(leader.state.weights)[1].clone()
    batch = rows(3, 16)
    seen = []
    for first in (0, 8):
        half = make(norm="batch")
        half.gradient({name: tensor[first : first + 8] for name, tensor in batch.items()}, {})
        seen.append(half.flat.split(half.state.weights)[1].clone())
    assert not torch.equal(seen[0], before)
    team = team_of(2, leader, 16)
    together = TeamStep(leader, team)
    with helped(team, [other]):
        expected, given = parts.gradient(batch, {}), together.gradient(batch, {})
    torch.testing.assert_close(given.vector, expected.vector, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(given.outcome, expected.outcome, rtol=1e-4, atol=1e-5)
    _, own = leader.flat.split(leader.state.weights)
    torch.testing.assert_close(own, (seen[0] + seen[1]) / 2, rtol=1e-5, atol=1e-6)
    counts = [view for name, view in leader.flat.buffer_views(own).items() if name.endswith("num_batches_tracked")]
    assert counts
    assert all(count.item() == 1.0 for count in counts)


def test_a_helper_whose_memory_runs_out_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    leader, other = make(), make()
    whole = other._gradient_of_modules

    def short(state: Any, batch: Any, draws: Any) -> Any:
        if len(batch["reward"]) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB.")
        return whole(state, batch, draws)

    monkeypatch.setattr(other, "_gradient_of_modules", short)
    assert memory.is_shortage(torch.OutOfMemoryError("x"))
    notes: list[str] = []
    team = team_of(2, leader, 16)
    with helped(team, [other], notes):
        check_equal(make(), TeamStep(leader, team), 16, num_updates=2)
    assert len(notes) == 1
    assert "in 2 parts from now on" in notes[0]


def test_a_batch_for_a_team_stays_on_the_host_and_each_share_goes_to_its_device() -> None:
    step, seen = make(device="meta"), []

    def gradient(batch: Any, draws: Any) -> Any:
        seen.append({tensor.device.type for tensor in batch.values()})
        moved, _ = on_device(step, batch, draws)
        seen.append({tensor.device.type for tensor in moved.values()})
        return step.gradient(moved, draws)

    step.gradient_by = gradient
    step.update(rows(0), {}, 1e-3)
    assert seen == [{"cpu"}, {"meta"}]


def test_a_team_in_shared_vectors_is_refused_off_the_cpu() -> None:
    shared = Team(2, make(), rows(0, 8), {}, num_actions=2)
    with pytest.raises(ConfigError, match="on the CPU or on a device each"):
        TeamStep(make(device="meta"), shared)


class Runtime:
    def __init__(self, answer: int) -> None:
        self.answer, self.asked = answer, tuple[int, ...]()

    def cudart(self) -> Runtime:
        return self

    def cudaHostRegister(self, first: int, count: int, flags: int) -> int:
        self.asked = (first, count, flags)
        return self.answer


def test_all_of_the_shared_memory_is_pinned_and_a_refusal_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    step = make()
    team = team_of(2, step, 8)
    runtime = Runtime(0)
    assert team.pin(runtime)
    assert runtime.asked == (team.weights.data_ptr(), team.segment.num_bytes, 0)
    assert not team.pin(Runtime(2))
    step.device = torch.device("cuda:1")
    monkeypatch.setattr(Team, "pin", lambda self: False)
    pin_where_possible(step, team)
    assert "could not be pinned; copies to cuda:1 take longer" in step.notes[0]
