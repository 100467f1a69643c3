"""A role is started again so many times within ten minutes, and not once more; helpers that hang are replaced."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest
from run_cases import planned

from freewheel.errors import RoleLost
from freewheel.report.phases import COUNTERS, PHASES
from freewheel.run import supervisor as supervisors
from freewheel.run.role_process import RoleProcess
from freewheel.run.supervisor import ASLEEP_S, Supervisor

PID = 4711


class Watched:
    """A supervisor whose clock is set by hand, and whose roles die on command instead of being started."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.plan = planned(**{"world.kind": "inline", "local.actors": 2})
        self.notes: list[str] = []
        self.started: list[str] = []
        self.now_s = 1e6
        self.supervisor = Supervisor(self.plan, self.notes.append, lambda role, message: None)
        monkeypatch.setattr(supervisors, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        monkeypatch.setattr(self.supervisor, "_start", lambda role: self.started.append(role.name))

    @property
    def actor(self) -> RoleProcess:
        return self.supervisor.actors[0]

    def die(self, role: RoleProcess, at_s: float) -> bool:
        """Whether it is started again after its death."""
        self.now_s = 1e6 + at_s
        before = len(self.started)
        self.supervisor._died(role, -signal.SIGKILL, PID)
        assert self.started[before:] in ([], [role.name])
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
    assert not watched.plan.counts.is_stopping
    assert not watched.die(watched.actor, 599)
    failed = watched.supervisor.failed
    assert isinstance(failed, RoleLost)
    assert "actor-0 ended 4 times within ten minutes, more than local.restarts=3" in str(failed)
    assert "it died by SIGKILL." in str(failed)
    assert watched.plan.counts.is_stopping, "the others were not asked to end"
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
        for role in (*watched.supervisor.learners, *watched.supervisor.actors):
            assert watched.die(role, at_s)
    assert watched.supervisor.failed is None
    assert not watched.die(watched.supervisor.actors[1], 3)
    assert "actor-1 ended 4 times" in str(watched.supervisor.failed)


def test_a_restart_is_told_with_pid_step_and_number(watched: Watched) -> None:
    watched.plan.counts.of(0).add_steps(81_204)
    watched.die(watched.actor, 0)
    watched.die(watched.actor, 1)
    assert watched.notes[-1] == "actor-0 (pid 4711) died by SIGKILL at step 81,204; restart 2 of 3."


def test_a_target_process_that_cannot_live_does_not_end_the_run(watched: Watched) -> None:
    (target,) = watched.supervisor.targets
    assert [watched.die(target, at_s) for at_s in range(5)] == [True, True, True, False, False]
    assert watched.supervisor.failed is None
    assert watched.notes[-1] == "target died by SIGKILL; training continues without it."
    assert watched.die(watched.actor, 5)


def test_a_worker_that_is_late_is_replaced_whether_it_lives_or_not(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = watched.supervisor
    hung, gone = workers = [RoleProcess(watched.plan, "worker", 0, i, None) for i in (1, 2)]
    supervisor.workers = [workers]
    killed: list[RoleProcess] = []
    with monkeypatch.context() as patch:
        patch.setattr(RoleProcess, "is_alive", property(lambda role: role is hung))
        patch.setattr(RoleProcess, "kill", lambda role: killed.append(role))
        supervisor.replace_late(0, 1)
        supervisor.replace_late(0, 2)
    assert (killed, watched.started) == ([hung], [gone.name])
    assert watched.notes[0].startswith("worker-1 gave no gradient in time and is replaced. Its stack:")


def test_a_compiler_that_never_ends_is_ended(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    (compiler,) = watched.supervisor.compilers
    killed: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(RoleProcess, "is_alive", property(lambda role: role is compiler))
        patch.setattr(RoleProcess, "is_stopped", property(lambda role: False))
        patch.setattr(compiler, "kill", lambda: killed.append("compiler"))
        compiler.started_s = 100.0
        watched.supervisor._watch(compiler, 100.0 + supervisors.COMPILE_S)
        assert killed == []
        watched.supervisor._watch(compiler, 101.0 + supervisors.COMPILE_S)
        assert killed == ["compiler"]
    assert "compiler has taken more than 900 s" in watched.notes[-1]


@pytest.mark.parametrize(
    ("phase", "is_stopped", "is_replaced"),
    [
        ("wait_ratio", False, False),
        ("wait_ratio", True, True),
        ("write", False, True),
    ],
)
def test_a_role_that_waits_is_no_stall_on_a_busy_machine(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, phase: str, is_stopped: bool, is_replaced: bool
) -> None:
    """With local.stall_s=1, five seconds without a turn: of a role that waits they say nothing, if it is not stopped."""
    actor, killed = watched.actor, list[str]()
    assert actor.page is not None
    page = watched.plan.ledger.page(actor.page)
    watched.plan.config = replace(watched.plan.config, local=replace(watched.plan.config.local, stall_s=1.0))
    with monkeypatch.context() as patch:
        patch.setattr(RoleProcess, "is_alive", property(lambda role: role is actor))
        patch.setattr(RoleProcess, "is_stopped", property(lambda role: is_stopped))
        patch.setattr(actor, "kill", lambda: killed.append(actor.name))
        actor.beat_s = watched.now_s
        page.start(PHASES.index(phase))
        page.count(COUNTERS.index("beats"), 1)
        watched.supervisor._watch(actor, watched.now_s)
        time.sleep(0.01)  # the ledger counts it as the phase's
        page.enter(PHASES.index(phase))
        watched.supervisor._watch(actor, watched.now_s + 5)
        assert (killed == [actor.name]) == is_replaced, watched.notes
        killed.clear()
        watched.supervisor._watch(actor, watched.now_s + ASLEEP_S + 1)
        assert killed == [actor.name], "a wait without an end is a stall"
