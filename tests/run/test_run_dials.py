"""Dials of a run: in force within a second in every role, kept when roles are replaced, logged, saved, restored."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from run_cases import RUNTIMES, StopAt, assert_same, kill, logged, resume, saved, train

from freewheel import Callback, Moment
from freewheel.errors import ConfigError

every_run = pytest.mark.parametrize("runtime", RUNTIMES)
# What the settings say: far from what the dials are turned to.
SETTINGS = {"explore.schedule": "constant", "explore.end": 0.05, "learner.lr": 1e-3, "log.every_s": 0.0}
SETTINGS |= {"replay.prioritized": True}
TURNED = {"epsilon": 0.75, "lr": 0.0625, "ratio": 2.0, "prioritized": 0.0}
# A busy machine may hold a process up for longer than the dial takes.
PATIENCE_S = 20.0


def epsilons(moment: Moment) -> list[float]:
    """Of every actor, as its page of the ledger has it."""
    plan = moment._runtime.plan  # type: ignore[union-attr]
    pages = range(plan.first_actor, plan.first_actor + plan.layout.actors)
    return [plan.ledger.snapshot(page).gauges["epsilon"] for page in pages]


class Turn(Callback):
    """Turns the dials, waits until every role goes by them, does something to a role, and waits again."""

    def __init__(self, then: Any = None) -> None:
        self.then, self.turned_s = then, 0.0
        self.took_s: list[float] = []
        self.starts = 0

    def on_step(self, moment: Moment) -> None:
        now = time.monotonic()
        if moment.is_stopping:
            return
        if not self.turned_s:
            if not moment.updates or 0.75 in epsilons(moment):
                return
            for name, value in TURNED.items():
                moment.set(name, value)
            self.turned_s = now
        elif self._is_there(moment):
            self.took_s.append(now - self.turned_s)
            if self.then is None:
                moment.stop()
            else:
                self.starts = self._starts(moment)
                self.then(moment)
                self.then, self.turned_s = None, now
        assert now - self.turned_s < PATIENCE_S or not self.turned_s, f"{epsilons(moment)}, {moment.metrics()}"

    def _is_there(self, moment: Moment) -> bool:
        if self.took_s and self._starts(moment) == self.starts:
            return False  # the one that was killed has not come back
        metrics = moment.metrics()
        acts = all(abs(each - 0.75) < 1e-9 for each in epsilons(moment))
        return acts and metrics.get("lr") == TURNED["lr"] and "priority_lag" not in metrics

    def _starts(self, moment: Moment) -> int:
        members = moment._runtime._supervisor.roles  # type: ignore[union-attr]
        plan = moment._runtime.plan  # type: ignore[union-attr]
        roles = [one for one in members if one.kind in ("actor", "learner")]
        # A new life counts once its first steps or updates are there.
        self._beats = {one.name: plan.ledger.snapshot(one.page).counters["beats"] for one in roles}
        return sum(one.life for one in roles)


def test_they_reach_every_role(tmp_path: Path) -> None:
    turn = Turn()
    run = train(tmp_path, "dqn", "local", steps=1_000_000, callbacks=[turn], settings={**SETTINGS, "local.actors": 2})
    assert len(turn.took_s) == 1
    assert saved(run)["dials"] == TURNED
    for name, value in TURNED.items():
        assert logged(run, f"dial/{name}")[-1] == value
    assert logged(run, "learner/lr")[-1] == TURNED["lr"]
    assert logged(run, "train/epsilon")[-1] == pytest.approx(0.75)


@pytest.mark.parametrize("role", ["actor-1", "learner"])
def test_they_outlive_a_role_that_is_killed(role: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """An actor that took another's place went back to the schedule."""
    turn = Turn(kill(role))
    settings = {**SETTINGS, "local.actors": 2, "checkpoint.every_steps": 200}
    run = train(tmp_path, "dqn", "local", steps=1_000_000, callbacks=[turn], settings=settings, is_quiet=False)
    assert f"{role} (pid " in capfd.readouterr().err
    assert len(turn.took_s) == 2
    assert saved(run)["dials"] == TURNED


def test_a_new_actor_never_goes_by_the_schedule(tmp_path: Path) -> None:
    """Its rows say so: with epsilon 1 of the dial and 0 of the schedule, every one of its actions is drawn."""
    seen: list[float] = []

    class Kill(Callback):
        is_killed = False

        def on_step(self, moment: Moment) -> None:
            moment.set("epsilon", 1.0)
            if moment.step > 400 and not self.is_killed:
                self.is_killed = True
                kill("actor-0")(moment)
            if self.is_killed and moment._runtime._supervisor.actors[0].life:  # type: ignore[union-attr]
                seen.extend(each for each in epsilons(moment) if each != 0.0)

    settings = {"explore.schedule": "constant", "explore.end": 0.5, "local.actors": 1}
    run = train(tmp_path, "dqn", "local", steps=4000, callbacks=[Kill()], settings=settings)
    assert run.result["steps"] >= 4000
    assert seen
    assert set(seen) == {1.0}


@every_run
def test_a_ratio_is_held_from_then_on(runtime: str, tmp_path: Path) -> None:
    points: list[tuple[int, int]] = []

    class Slow(Callback):
        def on_step(self, moment: Moment) -> None:
            if moment.step >= 600 and not points:
                moment.set("ratio", 2.0)
                points.append((moment.step, moment.updates))

    # In local a callback comes a few times a second, and many steps must be left after it.
    steps = 2600 if runtime == "sequential" else 20_000
    run = train(tmp_path, "dqn", runtime, steps=steps, callbacks=[Slow()])
    (step, updates), result = points[0], run.result
    made = (result["updates"] - updates) * 16 / (result["steps"] - step)
    assert made == pytest.approx(2.0, rel=0.15)


@every_run
def test_they_are_restored_on_resume(runtime: str, tmp_path: Path) -> None:
    class Once(Callback):
        def on_step(self, moment: Moment) -> None:
            if moment.step >= 300:
                moment.set("epsilon", 0.625)
                moment.set("lr", 0.03125)
                moment.set("prioritized", False)
                moment.stop()

    part = train(tmp_path, "dqn", runtime, steps=1200, callbacks=[Once()], settings=SETTINGS)
    assert saved(part)["dials"] == {"epsilon": 0.625, "lr": 0.03125, "prioritized": 0.0}
    told = len(logged(part, "learner/priority_lag"))
    run = resume(part, steps=part.result["steps"] + 1500)
    assert saved(run)["dials"] == saved(part)["dials"]
    assert logged(run, "learner/lr")[-1] == 0.03125
    assert len(logged(run, "learner/priority_lag")) == told  # draws were uniform from the first one on
    assert logged(run, "train/epsilon")[-1] == pytest.approx(0.625)
    given_back = resume(run, steps=run.result["steps"] + 600, callbacks=[GiveBack()])
    assert saved(given_back)["dials"] == {}
    assert logged(given_back, "train/epsilon")[-1] == pytest.approx(0.05)
    assert len(logged(given_back, "learner/priority_lag")) > told


class GiveBack(Callback):
    def on_step(self, moment: Moment) -> None:
        moment.set("epsilon", None)
        moment.set("lr", None)
        moment.set("prioritized", None)


class TurnAt(Callback):
    """Turns all dials at a step, before somebody else stops."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, moment: Moment) -> None:
        if self.step <= moment.step < self.step + 8:
            for name, value in {"epsilon": 0.5, "lr": 0.003, "ratio": 5.0, "prioritized": 0}.items():
                moment.set(name, value)
        if moment.step >= self.step + 300:
            moment.set("prioritized", 1)


def test_r93_a_run_with_dials_that_was_stopped_equals_one_that_was_not(tmp_path: Path) -> None:
    settings = {"checkpoint.replay": True, "replay.prioritized": True}
    whole = train(tmp_path / "whole", "dqn", steps=700, settings=settings, callbacks=[TurnAt(200)])
    part = train(tmp_path / "part", "dqn", steps=700, settings=settings, callbacks=[TurnAt(200), StopAt(433)])
    assert_same(whole, resume(part, callbacks=[TurnAt(200)]))


@every_run
@pytest.mark.parametrize(("algo", "dial"), [("ppo", "epsilon"), ("appo", "ratio"), ("dqn", "clip")])
def test_a_dial_that_an_algorithm_lacks_is_refused(algo: str, dial: str, runtime: str, tmp_path: Path) -> None:
    class Steer(Callback):
        def on_step(self, moment: Moment) -> None:
            moment.set(dial, 0.1)

    has = "epsilon, lr, ratio, prioritized" if algo == "dqn" else "lr"
    with pytest.raises(ConfigError, match=f"algo={algo} has no dial '{dial}'; it has {has}"):
        train(tmp_path, algo, runtime, callbacks=[Steer()])


def test_a_run_that_began_without_priorities_has_no_dial_for_them(tmp_path: Path) -> None:
    class Steer(Callback):
        def on_step(self, moment: Moment) -> None:
            moment.set("prioritized", 1)

    with pytest.raises(ConfigError, match=r"replay.prioritized is off. Start with --replay.prioritized"):
        train(tmp_path, "dqn", callbacks=[Steer()])


def test_a_policy_that_is_not_there_is_named(tmp_path: Path) -> None:
    class Steer(Callback):
        def on_step(self, moment: Moment) -> None:
            moment.set("lr", 0.1, policy="red")

    with pytest.raises(ConfigError, match="there is no policy 'red'"):
        train(tmp_path, "dqn", callbacks=[Steer()])


def test_an_override_given_on_resume_goes_before_the_dial(tmp_path: Path) -> None:
    class Steer(Callback):
        def on_step(self, moment: Moment) -> None:
            moment.set_epsilon(0.25)

    part = train(tmp_path, "dqn", callbacks=[Steer(), StopAt(100)], settings=SETTINGS)
    assert saved(part)["dials"] == {"epsilon": 0.25}
    resumed = resume(part, settings={"explore.override": 0.375}, callbacks=[StopAt(200)])
    assert saved(resumed)["dials"] == {}
    assert logged(resumed, "train/epsilon")[-1] == pytest.approx(0.375)
    again = resume(resumed, callbacks=[StopAt(300)])
    assert logged(again, "train/epsilon")[-1] == pytest.approx(0.375)
