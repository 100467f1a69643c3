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
from freewheel.learners.ratio import STOP
from freewheel.nets.flat import Flat
from freewheel.report.ledger import Snapshot
from freewheel.run.acting import Acting
from freewheel.run.channel import Channel, pair
from freewheel.run.job import FIRST_ACTOR, Job
from freewheel.run.layout import choose
from freewheel.run.local import plan
from freewheel.run.parts import build_policy

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

    def __init__(self, job: Job, most: int) -> None:
        ours, self.theirs = pair()
        super().__init__(ours)
        self.job, self.most, self.dropped = job, most, list[str]()

    def send(self, message: dict[str, Any]) -> None:
        if " left rows out: " in message.get("note", ""):
            self.dropped.append(message["note"])
            if len(self.dropped) == self.most:
                self.job.counts.add(STOP, 1)

    def close(self) -> None:
        super().close()
        self.theirs.close()


def job_of(tmp_path: Path, **settings: Any) -> Job:
    config = assemble("Breaking", {**SMALL, **ONE, "log.folder": str(tmp_path), **settings}, "none")
    job = plan(config, Breaking, None, None, choose(config, 2))
    net, _ = build_policy(config, job.obs_space, job.action_space, None, None)
    job.board.publish(Flat(net).vector(net))
    return job


def act(job: Job, most: int) -> tuple[Told, Snapshot]:
    told, threads = Told(job, most), torch.get_num_threads()
    Breaking.num_broken = 0
    try:
        Acting(job, 0, 0, told).run()
    finally:
        told.close()
        torch.set_num_threads(threads)
    return told, job.ledger.snapshot(FIRST_ACTOR)


def test_f09_of_ten_thousand_breaches_none_reaches_the_lanes(tmp_path: Path) -> None:
    job = job_of(tmp_path, **{"world.bad_rows": "drop"})
    told, page = act(job, INJECTIONS)
    assert Breaking.num_broken == len(told.dropped) == INJECTIONS
    assert all("Breaking (lane " in why and "seed " in why for why in told.dropped)
    assert page.counters["dropped_rows"] == INJECTIONS
    assert page.counters["rows_begun"] == page.counters["rows"] == job.lanes.rows_written() > INJECTIONS
    for words in words_of(job.lanes):
        assert len(words) > INJECTIONS
        obs, head = words[:, 4:5].copy().view(np.float32), words[:, :1].copy().view(np.float32)
        assert ((obs >= 0.25) & (obs <= 1)).all()
        reward = head[:, 1] if (head[:, 1] == 0.5).any() else head[:, 0]  # beside the flags
        assert set(np.unique(reward).tolist()) == {0.0, 0.5}


def test_f09_by_default_the_first_breach_ends_it(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    with pytest.raises(EnvError, match=r"Breaking \(lane \d\) .* seed \d+"):
        act(job, INJECTIONS)
    assert Breaking.num_broken == 1
    for words in words_of(job.lanes):
        assert (words[:, 4:5].copy().view(np.float32) >= 0.25).all()
