"""The process ahead: its values are the learner's own, and values of another batch or another target are never taken."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from test_step import ACTIONS, OBS, make, rows
from torch import Tensor

from freewheel.config import LearnerConfig, QConfig, assemble
from freewheel.learners import ahead as ahead_module
from freewheel.learners.ahead import DEPTH, MOVES, Ahead, work_ahead
from freewheel.learners.loop import Learner
from freewheel.learners.nested import filled, leaves
from freewheel.learners.step import Step, seen_later
from freewheel.memory.lanes import Lanes
from freewheel.run.parts import build_policy, build_replay
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
        later = with_it.later(batch, draws)
        assert all(tensor.is_contiguous() for tensor in later.values())  # as the shared memory is
        given, own = with_it.update(batch, draws, 1e-2, later), without.update(batch, draws, 1e-2)
        torch.testing.assert_close(given.loss, own.loss)
    torch.testing.assert_close(with_it.state.weights, without.state.weights)
    assert with_it.num_moves == 2
    assert with_it.has_later


def test_a_target_that_moves_within_a_call_has_no_values_before_it() -> None:
    assert not make(LearnerConfig(target_every_updates=10), unrolled=4).has_later
    assert make(LearnerConfig(target_every_updates=12), unrolled=4).has_later


class Pair:
    """A step, the shared memory, and the function that the other process would have compiled."""

    def __init__(self) -> None:
        self.step = make(q=QConfig(double=False))
        self.other = make(q=QConfig(double=False))  # the other process's: a network serves one thread at a time
        self.seen = seen_later(rows(0), {})
        self.ahead = Ahead(self.step.state.target, self.seen, self.step.later(rows(0), {}), num_groups=2)
        self.ahead.move(self.step.state.target)
        self.calls: list[Tensor] = []

    def function(self, target: Tensor, *given: Tensor) -> list[Tensor]:
        self.calls.append(given[0].clone())
        return list(self.other._later_of(target, filled(self.seen, iter(given))).values())

    def show(self, seed: int) -> int:
        return self.ahead.show([seen_later(rows(seed), {}), seen_later(rows(seed + 100), {})])

    def expected(self, seed: int) -> list[Tensor]:
        return [self.step.later(rows(n), {})["later"] for n in (seed, seed + 100)]

    @contextmanager
    def at_work(self) -> Iterator[None]:
        is_over = threading.Event()
        thread = threading.Thread(target=work_ahead, args=(self.ahead, self.function, is_over.is_set))
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
        found = [self.ahead.take(number, group) for group in range(2)]
        return None if None in found else found


def test_values_come_and_are_those_of_the_batch() -> None:
    pair = Pair()
    assert pair.take(pair.show(1)) is None
    with pair.at_work():
        for seed in range(1, 8):
            number = pair.show(seed)
            for given, own in zip(pair.until(number), pair.expected(seed), strict=True):
                torch.testing.assert_close(given["later"], own)
            assert pair.take(number + 1) is None  # another one has its slot


def test_values_of_a_target_that_moved_are_not_taken_but_worked_out_again() -> None:
    pair = Pair()
    with pair.at_work():
        first = pair.show(1)
        assert pair.until(first) is not None
        pair.step.state.target.mul_(2.0)
        pair.ahead.move(pair.step.state.target)
        assert pair.take(first) is None
        second = pair.show(2)  # which wakes the other process: DEPTH batches may still be wanted
        assert DEPTH == 2
        for number, seed in ((first, 1), (second, 2)):
            for given, own in zip(pair.until(number), pair.expected(seed), strict=True):
                torch.testing.assert_close(given["later"], own)


def test_a_pass_during_which_the_target_moves_counts_for_nothing() -> None:
    pair = Pair()
    function = pair.function

    def slow(target: Tensor, *given: Tensor) -> list[Tensor]:
        values = function(target, *given)
        pair.ahead.move(pair.step.state.target)
        return values

    number = pair.show(1)
    ahead_module._work(pair.ahead, slow, number, 1, pair.ahead.counters.value(MOVES))
    assert pair.ahead.take(number, 1) is None
    assert pair.ahead.counters.value(pair.ahead.counter(number, 1)) == 0


def test_a_learner_that_died_while_its_target_moved_leaves_no_values_that_pass_for_good() -> None:
    pair = Pair()
    pair.ahead.counters.add(MOVES)  # it died here
    with pair.at_work():
        number = pair.show(1)
        time.sleep(0.05)
        assert pair.take(number) is None
        assert not pair.calls
        pair.ahead.move(pair.step.state.target)  # the next learner
        assert pair.ahead.counters.value(MOVES) % 2 == 0
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
def test_a_learner_with_a_process_ahead_learns_the_same(has_help: bool) -> None:
    """From rows that do not change, so that drawing earlier draws the same."""
    alone, helped, other = learner(), learner(), learner()
    seen, later = seen_later(*helped.example()), helped.step.later(*helped.example())
    ahead = Ahead(helped.step.state.target, seen, later, helped.num_groups)
    helped.go_ahead(ahead)
    is_over = threading.Event()
    names = list(leaves(seen))

    def function(target: Tensor, *given: Tensor) -> list[Tensor]:
        assert len(given) == len(names)
        return list(other.step._later_of(target, filled(seen, iter(given))).values())

    thread = threading.Thread(target=work_ahead, args=(ahead, function, is_over.is_set))
    if has_help:
        thread.start()
    for steps in range(20):
        alone.call(steps)
        helped.call(steps)
        time.sleep(0.002)
    is_over.set()
    if has_help:
        thread.join(20)
        assert helped.ahead_share > 0
    assert alone.num_groups == 2
    assert helped.step.num_moves == alone.step.num_moves > 0
    torch.testing.assert_close(helped.step.state.weights, alone.step.state.weights)
    assert helped.figures()["ahead_share"] == helped.ahead_share
    for each in (alone, helped, other):
        each.replay.close()


def learner() -> Learner:
    settings = {
        "net.hidden": (16,),
        "learner.batch_size": 8,
        "learner.updates_per_call": 4,
        "learner.target_every_updates": 8,
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
    net, algo = build_policy(config, OBS, ACTIONS, None, None)
    step = Step(net, algo, config.learner, unrolled=2)
    return Learner(step, build_replay(lanes, config, 2), config, 0)


def test_stacks_that_share_frames_are_shown_as_the_process_ahead_has_them() -> None:
    frames = torch.arange(2 * 5 * 9, dtype=torch.uint8).reshape(2, 5, 3, 3)
    batch = {"obs": frames[:, :4], "next_obs": {"eye": frames[:, 1:]}}
    seen = seen_later(batch, {})
    assert seen["next_obs"]["eye"].is_contiguous()
    assert torch.equal(seen["next_obs"]["eye"], frames[:, 1:])
