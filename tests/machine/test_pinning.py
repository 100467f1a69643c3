"""A core for the learner alone: given where others hold it up, taken back where that does not help."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from freewheel.machine.pinning import BAD_WINDOWS, OwnCore, Pin

LEARNER, FEED, ACTOR = 10, 11, 20


class Machine:
    """Two cores, a learner of two threads and an actor, as /proc would show them."""

    def __init__(self, proc: Path, monkeypatch: pytest.MonkeyPatch, cores: int = 2) -> None:
        self.proc, self.now, self.ran, self.held = proc, 0.0, 0.0, 0.0
        self.bound: dict[int, set[int]] = {}
        self.notes: list[str] = []
        self.add(LEARNER, [LEARNER, FEED])
        self.add(ACTOR, [ACTOR])
        monkeypatch.setattr(
            os, "sched_getaffinity", lambda thread: self.bound.get(thread, set(range(cores))), raising=False
        )
        monkeypatch.setattr(os, "sched_setaffinity", self.bound.__setitem__, raising=False)

    def add(self, pid: int, threads: list[int]) -> None:
        for thread in threads:
            (self.proc / str(pid) / "task" / str(thread)).mkdir(parents=True)
        fields = ["S"] + ["0"] * 35 + ["1", "0"]
        (self.proc / str(pid) / "stat").write_text(f"{pid} (a (b) c) {' '.join(fields)}")

    def own(self, pin: Pin) -> OwnCore:
        return OwnCore(pin, self.notes.append, self.proc)

    def second(self, own: OwnCore, *, ran: float, held: float, learner: int = LEARNER) -> None:
        self.now, self.ran, self.held = self.now + 1, self.ran + ran, self.held + held
        times = f"{round(1e9 * self.ran)} {round(1e9 * self.held)} 7\n"
        (self.proc / str(learner) / "schedstat").write_text(times)
        own.look(learner, [ACTOR], self.now)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def given(machine: Machine) -> OwnCore:
    own = machine.own("auto")
    machine.second(own, ran=0, held=0)
    machine.second(own, ran=0.9, held=0.08)
    return own


def test_a_learner_that_others_hold_up_gets_the_core_it_ran_on(machine: Machine) -> None:
    own = given(machine)
    assert own.core == 1
    assert machine.bound == {LEARNER: {1}, FEED: {0}, ACTOR: {0}}
    assert machine.notes == ["Pinned the learner to core 1: other processes delayed it 8 % of the time."]


@pytest.mark.parametrize(("ran", "held"), [(0.5, 0.2), (0.99, 0.01)], ids=["it waits for rows", "nobody holds it up"])
def test_nobody_is_sent_away_where_there_is_nothing_to_win(machine: Machine, ran: float, held: float) -> None:
    own = machine.own("auto")
    for _ in range(5):
        machine.second(own, ran=ran, held=held)
    assert (own.core, machine.bound, machine.notes) == (None, {}, [])


@pytest.mark.parametrize(
    ("ran", "held", "why"),
    [(0.6, 0.4, "still delayed 40 % of the time"), (0.5, 0.0, "it waits for the actors")],
    ids=["another program", "the others bind"],
)
def test_the_core_is_shared_again_for_good_where_that_did_not_help(
    machine: Machine, ran: float, held: float, why: str
) -> None:
    own = given(machine)
    for _ in range(BAD_WINDOWS - 1):
        machine.second(own, ran=ran, held=held)
    machine.second(own, ran=0.99, held=0.01)
    for _ in range(BAD_WINDOWS - 1):
        machine.second(own, ran=ran, held=held)
    assert own.core == 1, "a bad moment now and then is none"
    machine.second(own, ran=ran, held=held)
    assert own.core is None
    assert set(machine.bound) == {LEARNER, FEED, ACTOR}
    assert all(cores == {0, 1} for cores in machine.bound.values())
    assert why in machine.notes[-1]
    for _ in range(3):
        machine.second(own, ran=0.9, held=0.1)
    assert own.core is None
    assert len(machine.notes) == 2


def test_a_learner_that_is_started_again_has_its_core_again(machine: Machine) -> None:
    own = given(machine)
    machine.add(30, [30])
    machine.second(own, ran=0, held=0, learner=30)
    assert machine.bound[30] == {1}


def test_off_never_and_on_at_once(machine: Machine) -> None:
    off, on = machine.own("off"), machine.own("on")
    for _ in range(3):
        machine.second(off, ran=0.9, held=0.1)
    assert machine.bound == {}
    for _ in range(BAD_WINDOWS + 1):
        machine.second(on, ran=0.2, held=0.5)
    assert on.core == 1
    assert machine.bound == {LEARNER: {1}, FEED: {0}, ACTOR: {0}}
    assert machine.notes == []


def test_on_needs_no_figures_of_the_kernel(machine: Machine) -> None:
    on = machine.own("on")
    on.look(LEARNER, [ACTOR], 1.0)  # there is no schedstat
    assert machine.bound == {LEARNER: {1}, FEED: {0}, ACTOR: {0}}


def test_an_end_gives_all_cores_back_for_good(machine: Machine) -> None:
    own = given(machine)
    own.end([LEARNER, ACTOR])
    assert machine.bound == {LEARNER: {0, 1}, FEED: {0, 1}, ACTOR: {0, 1}}
    machine.second(own, ran=0.9, held=0.08)
    assert own.core is None


def test_one_core_is_not_divided_and_on_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(tmp_path, monkeypatch, cores=1)
    machine.second(machine.own("on"), ran=0.9, held=0.1)
    assert machine.bound == {}
    assert machine.notes == ["local.pin=on has no effect here: it needs two cores and a system that can pin threads."]


def test_threads_that_end_meanwhile_and_a_system_that_tells_nothing_are_no_trouble(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(thread: int, cores: set[int]) -> None:
        raise ProcessLookupError

    monkeypatch.setattr(os, "sched_setaffinity", gone)
    assert given(machine).core == 1
    own = OwnCore("auto", machine.notes.append, machine.proc / "nowhere")
    own.look(LEARNER, [ACTOR], 1.0)
    assert own.core is None
