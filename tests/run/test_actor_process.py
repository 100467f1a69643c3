"""An actor's process: its account, its weights, and what it says that nobody takes."""

from __future__ import annotations

import time

import pytest
import torch
from run_cases import planned

from freewheel.report.phases import COUNTERS, PHASES
from freewheel.run import channel as channels
from freewheel.run.actor_process import ActorProcess
from freewheel.run.build import Acting
from freewheel.run.channel import Channel, pair


def test_what_a_process_takes_to_begin_is_part_of_its_account() -> None:
    plan = planned()
    ours, theirs = pair()
    page = plan.ledger.page(plan.first_actor)
    with ours, theirs:
        page.start(PHASES.index("start"))  # as the supervisor does when it asks for one
        time.sleep(0.03)
        ActorProcess(plan, 0, 0, Channel(theirs))
        page.enter(PHASES.index("stop"))
    assert plan.ledger.snapshot(plan.first_actor).phases_ns["start"] >= 30e6


def test_an_actor_takes_weights_again_that_were_overtaken(monkeypatch: pytest.MonkeyPatch) -> None:
    (policy,) = planned().policies
    weights = Acting(policy, policy.seed, range(1)).weights
    board = policy.board
    board.publish(torch.full((board.num_bytes // 4,), 7.0))
    fetch, answers = board.fetch, [None, None]

    def overtaken(vector: torch.Tensor, newer_than: int | None = None) -> int | None:
        if answers:
            vector.fill_(-1.0)  # half of one version and half of another
            return answers.pop()
        return fetch(vector)

    monkeypatch.setattr(board, "fetch", overtaken)
    assert weights.fetch()
    assert weights.version == 1
    assert bool((weights.vector == 7).all())


def test_messages_that_nobody_takes_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "MOST_WAITING", 2)
    plan = planned()
    ours, theirs = pair()
    with ours, theirs:
        channel = Channel(theirs)
        actor = ActorProcess(plan, 0, 0, channel)
        sent = 0
        while channel.num_dropped < 3:  # the socket's buffer takes some hundred
            channel.send({"text": "x" * 10_000})
            sent += 1
            assert sent < 10_000
        actor._report()
        actor._report()
    assert plan.ledger.snapshot(plan.first_actor).counters[COUNTERS[COUNTERS.index("dropped_messages")]] == 3
