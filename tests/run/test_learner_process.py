"""A learner's process: how it waits for compiled updates, which it keeps, and what it saves when it is hurried."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from run_cases import planned

from freewheel.machine.trial import Choice
from freewheel.memory.counts import Counts
from freewheel.memory.lanes import Lanes
from freewheel.run.build import Acting, build_learner
from freewheel.run.channel import Channel, pair
from freewheel.run.learner_process import LearnerProcess
from freewheel.run.state import restore_rows
from freewheel.store.checkpoint import load_newest
from freewheel.weights import board as boards


class Update:
    is_compiled = True

    def go_back(self) -> None:
        self.is_compiled = False


def fill(lanes: Lanes, num_rows: int) -> None:
    writer, numbers = lanes.writer(), np.random.default_rng(0)
    every, no = np.arange(lanes.num_lanes), np.zeros(lanes.num_lanes, np.bool_)
    for _ in range(num_rows):
        fields = {"obs": numbers.normal(size=(len(every), 4)).astype(np.float32), "action": no.astype(np.int64)}
        writer.append(every, fields, numbers.normal(size=len(every)).astype(np.float32), no, no)


@pytest.mark.parametrize(("chosen", "stays"), [("compiled", True), ("eager", False)])
def test_the_faster_updates_go_on(chosen: str, stays: bool) -> None:
    update, notes, workers = Update(), list[Any](), list[str]()
    process: Any = SimpleNamespace(
        learner=SimpleNamespace(update=update, update_s=0.1),
        channel=SimpleNamespace(send=notes.append),
        workers=SimpleNamespace(close=lambda: workers.append("dismissed"), go_on=lambda: workers.append("go on")),
        _comparison=SimpleNamespace(add=lambda seconds, is_compiled: Choice(chosen, "It is faster.")),
    )
    LearnerProcess._compare(process)
    assert update.is_compiled is stays
    assert notes == [{"note": "It is faster."}]
    assert workers == ["dismissed" if stays else "go on"]


def test_a_learner_sleeps_while_its_update_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Updates are due, and the package comes after a second: the learner may not look around for it all the time."""
    plan = planned(**{"learner.compile": "on"})
    counts: Counts = plan.counts.of(0)
    ours, theirs = pair()
    with ours, theirs:
        supervisor, channel = Channel(ours), Channel(theirs)
        process = LearnerProcess(plan, plan.policies[0], 0, channel)
        counts.add_steps(500)
        num_waits = 0
        wait = channel.wait

        def counted(timeout_s: float) -> bool:
            nonlocal num_waits
            num_waits += 1
            if num_waits == 3:
                supervisor.send({"adopt": None})
            elif num_waits == 1:
                assert wait(0.01) is False  # nobody says anything: it would have slept
            return wait(timeout_s if num_waits == 3 else 0.0)

        def turned() -> bool:
            plan.counts.stop(level=2)
            if not process.learner.pace.due():
                return False
            counts.add_updates(process.learner.pace.backlog())
            return True

        monkeypatch.setattr(channel, "wait", counted)
        monkeypatch.setattr(process.learner, "turn", turned)
        process._train()
        process.learner.close()
        process.saver.close()
    assert num_waits == 3
    assert counts.updates > 0


def test_weights_that_were_too_early_are_published_while_the_learner_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the lessons of a burst there may be none for a long time."""
    plan = planned(**{"local.publish_every_updates": 100, "local.publish_every_s": 5.0})
    (policy,) = plan.policies
    clock = SimpleNamespace(now=50.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(boards, "time", clock)
    learner = build_learner(plan, policy)
    fill(policy.lanes, 30)
    learner.begin(is_again=False)
    plan.counts.of(0).add_steps(104)
    while learner.turn():
        pass
    assert (learner.updates, learner.version) == (2, 1)
    clock.now += 5.0
    assert not learner.turn()
    assert (learner.version, policy.board.version) == (2, 2)
    clock.now += 5.0
    assert not learner.turn()
    assert learner.version == 2  # nothing has changed since
    learner.close()


def test_a_run_s_settings_reach_publisher_and_fetcher() -> None:
    plan = planned(**{"local.publish_least_change": 0.5, "local.fetch_every_steps": 100, "local.fetch_every_s": 9.0})
    (policy,) = plan.policies
    learner = build_learner(plan, policy)
    weights = Acting(policy, policy.seed, range(1)).weights
    learner.begin(is_again=False)
    assert weights.fetch(7)
    learner.update.num_updates = 50
    learner.turn()
    assert learner.version == 1
    learner.update.state.weights.mul_(2.0)
    learner.update.num_updates = 100
    learner.turn()
    assert learner.version == 2
    assert [step for step in (7, 50, 106, 107, 108) if weights.fetch(step)] == [107]
    assert torch.equal(weights.vector, learner.update.state.weights)
    learner.close()


def test_a_hurried_end_saves_the_weights_before_the_replay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plan = planned(**{"checkpoint.replay": True})
    plan.checkpoints = tmp_path
    ours, theirs = pair()
    with ours, theirs:
        process = LearnerProcess(plan, plan.policies[0], 0, Channel(theirs))
        saved: list[list[str]] = []
        monkeypatch.setattr(process, "_train", lambda: plan.counts.stop(level=2))
        monkeypatch.setattr(process, "_save_last", lambda files=None: saved.append(list(files or {})))
        process.run()
    assert saved == [[], ["replay.bin"]]


@pytest.mark.parametrize("has_rows", [True, False])
def test_a_resumed_run_keeps_the_largest_priority(has_rows: bool, tmp_path: Path) -> None:
    """Rows that came after a resume took the priority 1, however large the others were."""
    plan = planned(**{"replay.prioritized": True, "checkpoint.replay": has_rows})
    plan.checkpoints = tmp_path
    plan.policies[0].lanes.core.raise_max_priority(7.5)
    ours, theirs = pair()
    with ours, theirs:
        process = LearnerProcess(plan, plan.policies[0], 0, Channel(theirs))
        process._save_last(process._last_files())
        process.learner.close()
        process.saver.close()
    again = planned(**{"replay.prioritized": True})
    assert restore_rows(again.policies[0], load_newest(tmp_path), "replay.bin") is has_rows
    assert again.policies[0].lanes.core.max_priority == 7.5


@pytest.mark.parametrize(("collect", "decides"), [("rows", True), ("episodes", False)])
def test_rollouts_of_varying_length_are_never_compiled(collect: str, decides: bool) -> None:
    """The supervisor decides by the time of an update: it is told none where batches vary in size."""
    plan = planned("ppo", **{"rollout.collect": collect})
    ours, theirs = pair()
    with ours, theirs:
        supervisor = Channel(ours)
        process = LearnerProcess(plan, plan.policies[0], 0, Channel(theirs))
        process.learner._update_times.append(0.5)
        process._report()
        told = [message["update_s"] for message in supervisor.receive() if "update_s" in message]
        process.learner.close()
        process.saver.close()
    assert told == [0.5 if decides else 0.0]
