"""The target process: its values are the learner's own, and values of another batch or another target are never taken."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from test_update import ACTIONS, OBS, make, rows
from torch import Tensor

from freewheel.algos.make import make_algo
from freewheel.config import LearnerConfig, QConfig, assemble
from freewheel.contracts import Spaces
from freewheel.learners import target_process
from freewheel.learners.learner import Learner
from freewheel.learners.target_process import DEPTH, MOVES, TargetValues, work_ahead
from freewheel.learners.update import Update
from freewheel.memory.counts import RunCounts
from freewheel.memory.lanes import Lanes
from freewheel.memory.nested import filled, leaves
from freewheel.spec import RowSpec

CASES = {
    "dqn": ("dqn", QConfig(double=False)),
    "double": ("dqn", QConfig(double=True)),
    "noisy": ("dqn", QConfig(noisy=True)),
    "qrdqn": ("qrdqn", QConfig(double=False)),
    "iqn": ("iqn", QConfig(double=False, num_act_taus=5)),
    "double iqn": ("iqn", QConfig(double=True, num_act_taus=5)),
    "c51": ("c51", QConfig()),
}


def stacked(each: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([one[name] for one in each]) for name in each[0]}


@pytest.mark.parametrize("case", CASES)
def test_an_update_with_values_worked_out_before_is_the_same(case: str) -> None:
    algo, q = CASES[case]
    config = LearnerConfig(target_every_updates=6)
    with_it, without = (make(config, q, algo, unrolled=3) for _ in range(2))
    generator = torch.Generator().manual_seed(1)
    for i in range(5):  # the target moves twice
        batch = stacked([rows(10 * i + k) for k in range(3)])
        drawn = [with_it.algo.draws(len(rows(0)["reward"]), generator) for _ in range(3)]
        draws = stacked(drawn) if drawn[0] else {}
        later = with_it.lookahead(batch, draws)
        assert all(tensor.is_contiguous() for tensor in later.values())  # as the shared memory is
        given, own = with_it(batch, draws, {"lr": 1e-2}, later), without(batch, draws, {"lr": 1e-2})
        torch.testing.assert_close(given.loss, own.loss)
    torch.testing.assert_close(with_it.state.weights, without.state.weights)
    assert with_it.num_moves == 2
    assert with_it.has_lookahead


def test_a_target_that_moves_within_a_call_has_no_values_before_it() -> None:
    assert not make(LearnerConfig(target_every_updates=10), unrolled=4).has_lookahead
    assert make(LearnerConfig(target_every_updates=12), unrolled=4).has_lookahead
    for refresh, stands_still in ((10, False), (8, True)):
        config = LearnerConfig(target_every_updates=12, tau=0.5, target_refresh_updates=refresh)
        assert make(config, unrolled=4).has_lookahead == stands_still


class Pair:
    """A update, the shared memory, and the function that the other process would have compiled."""

    def __init__(self) -> None:
        self.update = make(q=QConfig(double=False))
        self.other = make(q=QConfig(double=False))  # the other process's: a network serves one thread at a time
        self.seen = Update.target_inputs(rows(0), {})
        self.values = TargetValues(
            self.update.state.target, self.seen, self.update.lookahead(rows(0), {}), num_groups=2
        )
        self.values.move(self.update.state.target)
        self.calls: list[Tensor] = []

    def function(self, target: Tensor, *given: Tensor) -> list[Tensor]:
        self.calls.append(given[0].clone())
        return list(self.other.look_ahead(target, filled(self.seen, iter(given))).values())

    def show(self, seed: int) -> int:
        return self.values.show([Update.target_inputs(rows(seed), {}), Update.target_inputs(rows(seed + 100), {})])

    def expected(self, seed: int) -> list[Tensor]:
        return [self.update.lookahead(rows(n), {})["next_out"] for n in (seed, seed + 100)]

    @contextmanager
    def at_work(self) -> Iterator[None]:
        is_over = threading.Event()
        thread = threading.Thread(target=work_ahead, args=(self.values, self.function, is_over.is_set))
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join(20)

    def until(self, number: int) -> Any:
        deadline = time.monotonic() + 20
        while (found := self.take(number)) is None and time.monotonic() < deadline:
            time.sleep(0.001)
        return found

    def take(self, number: int) -> list[Any] | None:
        found = [self.values.found(number, group) for group in range(2)]
        return None if None in found else found


def test_values_come_and_are_those_of_the_batch() -> None:
    pair = Pair()
    assert pair.take(pair.show(1)) is None
    with pair.at_work():
        for seed in range(1, 8):
            number = pair.show(seed)
            for given, own in zip(pair.until(number), pair.expected(seed), strict=True):
                torch.testing.assert_close(given["next_out"], own)
            assert pair.take(number + 1) is None  # another one has its slot


def test_values_of_a_target_that_moved_are_not_taken_but_worked_out_again() -> None:
    pair = Pair()
    with pair.at_work():
        first = pair.show(1)
        assert pair.until(first) is not None
        pair.update.state.target.mul_(2.0)
        pair.values.move(pair.update.state.target)
        assert pair.take(first) is None
        second = pair.show(2)  # which wakes the other process: DEPTH batches may still be wanted
        assert DEPTH == 2
        for number, seed in ((first, 1), (second, 2)):
            for given, own in zip(pair.until(number), pair.expected(seed), strict=True):
                torch.testing.assert_close(given["next_out"], own)


def test_a_pass_during_which_the_target_moves_counts_for_nothing() -> None:
    pair = Pair()
    function = pair.function

    def slow(target: Tensor, *given: Tensor) -> list[Tensor]:
        values = function(target, *given)
        pair.values.move(pair.update.state.target)
        return values

    number = pair.show(1)
    target_process._work(pair.values, slow, number, 1, pair.values.counters.value(MOVES))
    assert pair.values.found(number, 1) is None
    assert pair.values.counters.value(pair.values.counter(number, 1)) == 0


def test_a_learner_that_died_while_its_target_moved_leaves_no_values_that_pass_for_good() -> None:
    pair = Pair()
    pair.values.counters.add(MOVES)  # it died here
    with pair.at_work():
        number = pair.show(1)
        time.sleep(0.05)
        assert pair.take(number) is None
        assert not pair.calls
        pair.values.move(pair.update.state.target)  # the next learner
        assert pair.values.counters.value(MOVES) % 2 == 0
        assert pair.until(pair.show(2)) is not None


def test_batches_that_come_too_fast_are_left_out() -> None:
    """Only those are worked out that the learner trains on or has not yet trained on."""
    pair = Pair()
    for seed in range(1, 9):
        number = pair.show(seed)
    with pair.at_work():
        assert pair.until(number) is not None
    assert len(pair.calls) == 2 * (DEPTH + 1)
    torch.testing.assert_close(pair.calls[0], rows(6)["next_obs"])


@pytest.mark.parametrize("has_help", [True, False])
def test_a_learner_with_a_target_process_learns_the_same(has_help: bool) -> None:
    """From rows that do not change, so that drawing earlier draws the same."""
    alone, fed, other = learner(), learner(), learner()
    example = fed.memory.example()
    seen, later = Update.target_inputs(*example), fed.update.lookahead(*example)
    values = TargetValues(fed.update.state.target, seen, later, fed.memory.num_groups)
    fed.use_targets(values)
    assert fed.targets is not None
    is_over = threading.Event()
    names = list(leaves(seen))

    def function(target: Tensor, *given: Tensor) -> list[Tensor]:
        assert len(given) == len(names)
        return list(other.update.look_ahead(target, filled(seen, iter(given))).values())

    thread = threading.Thread(target=work_ahead, args=(values, function, is_over.is_set))
    if has_help:
        thread.start()
    for _ in range(20):
        for one in (alone, fed):
            one.pace.counts.add_steps(1)
            assert one.turn()
            assert not one.pace.due()
        time.sleep(0.002)
    is_over.set()
    if has_help:
        thread.join(20)
        assert fed.targets.share > 0
    assert alone.memory.num_groups == 2
    assert fed.update.num_moves == alone.update.num_moves > 0
    torch.testing.assert_close(fed.update.state.weights, alone.update.state.weights)
    assert fed.metrics()["target_process_share"] == fed.targets.share
    for each in (alone, fed, other):
        each.close()


def learner() -> Learner:
    settings = {
        "net.hidden": (16,),
        "runtime": "local",
        "learner.batch_size": 8,
        "learner.updates_per_call": 4,
        "learner.ratio": 32.0,
        "learner.target_every_updates": 8,
        "learner.target_refresh_updates": 12,
        "learner.tau": 0.5,
        "learner.lr": 1e-2,
        "replay.warmup_rows": 100,
        "replay.rows": 400,
        "world.lanes": 4,
    }
    config = assemble("CartPole-v1", settings, "none")
    lanes = Lanes(RowSpec.of(OBS, ACTIONS), 4, 100)
    writer, numbers = lanes.writer(), np.random.default_rng(3)
    no = np.zeros(4, np.bool_)
    for _ in range(60):
        fields = {"obs": numbers.normal(size=(4, 4)).astype(np.float32), "action": numbers.integers(0, 2, 4)}
        writer.append(np.arange(4), fields, numbers.normal(size=4).astype(np.float32), no, no)
    algo = make_algo(config, Spaces(OBS, ACTIONS, 4))
    algo.updates_together = lambda: 2
    counts = RunCounts(1).of(0)
    counts.add_steps(100)  # the warm-up
    memory, pace = algo.memory(lanes, lambda stream: 0), algo.pace(counts, 4, is_local=True)
    return Learner(algo, Update(algo, config.learner, unrolled=2), memory, pace, config)


def test_stacks_that_share_frames_are_shown_as_the_process_ahead_has_them() -> None:
    frames = torch.arange(2 * 5 * 9, dtype=torch.uint8).reshape(2, 5, 3, 3)
    batch = {"obs": frames[:, :4], "next_obs": {"eye": frames[:, 1:]}}
    seen = Update.target_inputs(batch, {})
    assert seen["next_obs"]["eye"].is_contiguous()
    assert torch.equal(seen["next_obs"]["eye"], frames[:, 1:])
