"""A role is started again so many times within ten minutes, and not once more; older deaths are forgotten."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from freewheel.config import assemble
from freewheel.errors import RoleLost
from freewheel.learners.ratio import STOP
from freewheel.run import supervisor as supervisors
from freewheel.run.layout import choose
from freewheel.run.local import plan
from freewheel.run.member import Member
from freewheel.run.supervisor import Supervisor

SMALL = {
    "runtime": "local",
    "world.kind": "inline",
    "world.lanes": 4,
    "local.actors": 2,
    "net.hidden": (8,),
    "replay.rows": 2000,
    "learner.workers": 1,
    "learner.compile": "off",
}


class Watched:
    """A supervisor whose clock is set by hand, and whose roles die on command instead of being started."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        config = assemble("CartPole-v1", SMALL, "none")
        self.job = plan(config, "CartPole-v1", None, None, choose(config, 2))
        self.notes: list[str] = []
        self.started: list[str] = []
        self.now_s = 1e6
        self.supervisor = Supervisor(self.job, self.notes.append, lambda member, message: None)
        monkeypatch.setattr(supervisors, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        monkeypatch.setattr(self.supervisor, "_start", lambda member: self.started.append(member.name))

    @property
    def actor(self) -> Member:
        return self.supervisor.actors[0]

    def die(self, member: Member, at_s: float) -> bool:
        """Whether it is started again after its death."""
        self.now_s = 1e6 + at_s
        before = len(self.started)
        self.supervisor._died(member, -signal.SIGKILL)
        assert self.started[before:] in ([], [member.name])
        return len(self.started) > before


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    found = Watched(monkeypatch)
    yield found
    found.supervisor.close()
    vars(found).clear()  # pytest keeps it, and with it shared memory


def test_the_fourth_death_within_ten_minutes_ends_the_run(watched: Watched) -> None:
    assert [watched.die(watched.actor, at_s) for at_s in (0, 200, 400)] == [True] * 3
    assert watched.supervisor.failed is None
    assert watched.job.counts.value(STOP) == 0
    assert not watched.die(watched.actor, 599)
    failed = watched.supervisor.failed
    assert isinstance(failed, RoleLost)
    assert "actor-0 ended 4 times within ten minutes, more than local.restarts=3" in str(failed)
    assert "killed by SIGKILL" in str(failed)
    assert watched.job.counts.value(STOP) == 1, "the others were not asked to end"
    assert watched.supervisor.num_deaths == 4


@pytest.mark.parametrize(("at_s", "is_started"), [(600.0, False), (600.1, True)])
def test_a_death_counts_for_ten_minutes(watched: Watched, at_s: float, is_started: bool) -> None:
    for before_s in (0, 1, 2):
        assert watched.die(watched.actor, before_s)
    assert watched.die(watched.actor, at_s) == is_started
    assert (watched.supervisor.failed is None) == is_started


@pytest.mark.parametrize(("every_s", "most"), [(201, 100), (200, 4)])
def test_one_that_dies_seldom_is_started_for_ever(watched: Watched, every_s: int, most: int) -> None:
    deaths = 0
    while deaths < 100 and watched.supervisor.failed is None:
        watched.die(watched.actor, deaths * every_s)
        deaths += 1
    assert deaths == most


def test_each_role_has_its_own_budget(watched: Watched) -> None:
    for at_s in range(3):
        for member in (watched.supervisor.learner, *watched.supervisor.actors):
            assert watched.die(member, at_s)
    assert watched.supervisor.failed is None
    assert not watched.die(watched.supervisor.actors[1], 3)
    assert "actor-1 ended 4 times" in str(watched.supervisor.failed)
