"""F09: ten thousand breaches of the env's contract, each told and counted; not one reaches the lanes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fault_drive import words_of
from fault_envs import BAD, Plain, bad
from fault_runs import SMALL, TIMES

from freewheel.config import assemble
from freewheel.errors import EnvError
from freewheel.nets.flat import Flat
from freewheel.report.ledger import Snapshot
from freewheel.run.actor_process import ActorProcess
from freewheel.run.channel import Channel, pair
from freewheel.run.layout import choose
from freewheel.run.plan import Plan, Setup
from freewheel.run.runtime import plan_local

INJECTIONS = 10_000 * TIMES
ONE = {"local.actors": 1, "local.free": True, "world.lanes": 1, "replay.rows": 400_000, "steps": 10**9}


class Breaking(Plain):
    """Breaks its contract at every third step or so, each time in another way; good observations lie above 0."""

    pause_s = 0.0
    num_broken = 0
    chance = np.random.default_rng(9)

    def observe(self) -> np.ndarray[Any, Any]:
        return (self.draws.uniform(0.25, 1, 2)).astype(np.float32)

    def step(self, action: Any) -> Any:
        obs, _, ended, cut, info = super().step(action)
        if Breaking.chance.random() > 0.3:
            return obs, 0.5, ended, cut, info
        Breaking.num_broken += 1
        obs, reward = bad(BAD[Breaking.num_broken % len(BAD)], obs)
        return obs, reward, ended, cut, info


class Told(Channel):
    """Keeps what the actor says, and ends the run when enough has happened."""

    def __init__(self, plan: Plan, most: int) -> None:
        ours, self.theirs = pair()
        super().__init__(ours)
        self.plan, self.most, self.dropped = plan, most, list[str]()

    def send(self, message: dict[str, Any]) -> None:
        if " dropped rows: " in message.get("note", ""):
            self.dropped.append(message["note"])
            if len(self.dropped) == self.most:
                self.plan.counts.stop()

    def close(self) -> None:
        super().close()
        self.theirs.close()


def plan_of(tmp_path: Path, **settings: Any) -> Plan:
    config = assemble("Breaking", {**SMALL, **ONE, "log.folder": str(tmp_path), **settings}, "none")
    plan = plan_local(Setup(config, Breaking, choose(config, 2)))
    net = plan.policies[0].algo().net
    plan.policies[0].board.publish(Flat(net).vector(net))
    return plan


def act(plan: Plan, most: int) -> tuple[Told, Snapshot]:
    told, threads = Told(plan, most), torch.get_num_threads()
    Breaking.num_broken = 0
    try:
        ActorProcess(plan, 0, 0, told).run()
    finally:
        told.close()
        torch.set_num_threads(threads)
    return told, plan.ledger.snapshot(plan.first_actor)


def test_f09_of_ten_thousand_breaches_none_reaches_the_lanes(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, **{"world.bad_rows": "drop"})
    told, page = act(plan, INJECTIONS)
    assert Breaking.num_broken == len(told.dropped) == INJECTIONS
    assert all("Breaking (lane " in why and "seed " in why for why in told.dropped)
    assert page.counters["dropped_rows"] == INJECTIONS
    assert page.counters["rows_begun"] == page.counters["rows"] == plan.policies[0].lanes.rows_written() > INJECTIONS
    for words in words_of(plan.policies[0].lanes):
        assert len(words) > INJECTIONS
        obs, head = words[:, 4:5].copy().view(np.float32), words[:, :1].copy().view(np.float32)
        assert ((obs >= 0.25) & (obs <= 1)).all()
        reward = head[:, 1] if (head[:, 1] == 0.5).any() else head[:, 0]  # beside the flags
        assert set(np.unique(reward).tolist()) == {0.0, 0.5}


def test_f09_by_default_the_first_breach_ends_it(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    with pytest.raises(EnvError, match=r"Breaking \(lane \d\) .* seed \d+"):
        act(plan, INJECTIONS)
    assert Breaking.num_broken == 1
    for words in words_of(plan.policies[0].lanes):
        assert (words[:, 4:5].copy().view(np.float32) >= 0.25).all()
