"""The account: shares that add up, verdicts that name what binds, and warnings where something is wrong."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Mapping
from dataclasses import replace

import pytest

from freewheel.report import phases
from freewheel.report.account import Account, RoleTime, account, table


def role(
    kind: str, spent: Mapping[str, float], name: str = "", wall_s: float | None = None, **more: object
) -> RoleTime:
    wall_s = sum(spent.values()) if wall_s is None else wall_s
    return RoleTime(name or kind, kind, wall_s, spent, **more)  # type: ignore[arg-type]


def run(
    actor: Mapping[str, float],
    learner: Mapping[str, float],
    ratio: float = 32.0,
    is_free: bool = False,
    warmup_s: float = 0.0,
    fewer_updates: str = "learner.ratio",
) -> Account:
    roles = [role("actor", actor, "actor 0"), role("learner", learner)]
    return account(
        roles, ratio_target=32.0, ratio=ratio, is_free=is_free, warmup_s=warmup_s, fewer_updates=fewer_updates
    )


BUSY_ACTOR = {"env": 80.0, "infer": 17.0, "write": 2.0, "fetch": 1.0}
BUSY_LEARNER = {"compute": 96.0, "sample": 2.0, "publish": 1.0, "wait_data": 1.0}
HELD_ACTOR = {"env": 20.0, "infer": 8.0, "write": 1.0, "wait_ratio": 71.0}
STARVED_LEARNER = {"compute": 38.0, "sample": 2.0, "wait_data": 60.0}


def test_the_ledger_of_a_run_has_all_names() -> None:
    ledger = phases.new_ledger(2)
    page = ledger.page(1)
    for name in (*phases.ACTOR, *phases.LEARNER, *phases.SUPERVISOR):
        page.enter(phases.PHASES.index(name))
    assert set(phases.PHASES) >= phases.USEFUL | phases.WAITS
    assert {*ledger.snapshot(1).counters, *ledger.snapshot(1).gauges} == {*phases.COUNTERS, *phases.GAUGES}


def test_an_account_of_a_real_ledger_closes() -> None:
    ledger = phases.new_ledger(1)
    page = ledger.page(0)
    began = time.monotonic()
    page.start(phases.PHASES.index("start"))
    page.enter(phases.PHASES.index("env"))
    time.sleep(0.05)
    page.enter(phases.PHASES.index("infer"))
    snapshot = ledger.snapshot(0)
    one = RoleTime.of("actor 0", "actor", snapshot, time.monotonic() - began, cpu_s=0.01)
    one = replace(one, gauges={**one.gauges, "memory_mb": 120.0})
    found = account([one], ratio_target=1, ratio=1, is_free=False).roles["actor 0"]
    assert found.closed > 0.9
    assert found.phases["env"] > 0.5
    assert found.useful == pytest.approx(found.phases["env"] + found.phases["infer"])
    assert found.memory_mb == 120.0
    assert set(found.phases) == set(phases.ACTOR)


# What binds, decided by who waits for whom.


def test_the_learner_binds() -> None:
    found = run(HELD_ACTOR, BUSY_LEARNER)
    assert found.binds == "learner"
    assert found.verdict == (
        "The learner binds: 96 % of its time went to updates, and the actors waited 71 % of their time for it. "
        "To go faster: compile updates (--compile on) if they are eager, make fewer per step (--learner.ratio), "
        "or use a smaller network."
    )
    assert found.warnings == ()


def test_the_advice_names_only_settings_of_the_algorithm() -> None:
    found = run(HELD_ACTOR, BUSY_LEARNER, fewer_updates="ppo.epochs")
    assert "make fewer per step (--ppo.epochs), or use" in found.verdict
    found = run(HELD_ACTOR, BUSY_LEARNER, fewer_updates="")
    assert found.verdict.endswith("compile updates (--compile on) if they are eager, or use a smaller network.")


def test_actors_bind_by_env_steps() -> None:
    found = run(BUSY_ACTOR, STARVED_LEARNER)
    assert found.binds == "actors"
    assert found.verdict.startswith(
        "Actors bind: 80 % of their time went to env steps, 17 % to choosing actions, and the learner waited 60 % of its "
        "time for data. To go faster: use a faster env or, if cores are free, a pool (--world pool) or more actors "
        "(--local.actors)"
    )
    assert found.warnings == ()


def test_actors_bind_by_choosing_actions() -> None:
    found = run({"env": 9.0, "infer": 90.0, "write": 1.0}, STARVED_LEARNER)
    assert found.binds == "actors"
    assert "90 % of their time went to choosing actions, and" in found.verdict
    assert "--lanes" in found.verdict
    assert "--local.actors" not in found.verdict


def test_neither_binds_when_nobody_waits() -> None:
    found = run(BUSY_ACTOR, BUSY_LEARNER)
    assert found.binds == "neither"
    assert found.verdict.startswith(
        "Neither binds: nobody waited. 96 % of the learner's time went to updates, and 80 %"
    )
    assert "--learner.ratio" in found.verdict
    assert "--local.actors" in found.verdict


def test_neither_binds_when_both_sleep() -> None:
    found = run({"env": 50.0, "wait_ratio": 50.0}, {"compute": 60.0, "wait_data": 40.0})
    assert found.binds == "neither"
    assert (
        "the actors waited 50 % of their time for the ratio, and the learner 40 % of its time for data" in found.verdict
    )
    assert "--local.slack-steps" in found.verdict
    assert len(found.warnings) == 1


def test_a_short_run_was_mostly_start_up() -> None:
    found = run({"start": 3.0, "env": 0.5, "wait_ratio": 1.0}, {"start": 3.0, "compute": 1.5})
    assert found.binds == "start"
    assert found.verdict.startswith("Start-up took most of the time (67 %)")
    found = run({"stop": 3.0, "env": 0.5}, {"stop": 3.0, "compute": 1.5})
    assert found.verdict.startswith("Stopping took most of the time")


def test_start_up_does_not_hide_who_binds() -> None:
    """Shares in the verdict are of the time between start and stop."""
    found = run({**HELD_ACTOR, "start": 90.0}, {**BUSY_LEARNER, "start": 90.0})
    assert "96 % of its time went to updates, and the actors waited 71 %" in found.verdict
    assert found.roles["learner"].phases["compute"] == pytest.approx(96 / 190)


def test_a_free_run_tells_the_ratio_it_missed() -> None:
    found = run(BUSY_ACTOR, BUSY_LEARNER, ratio=12.0, is_free=True)
    assert found.binds == "learner"
    assert "It sampled 12 rows per step instead of 32" in found.verdict
    assert found.warnings == ()
    assert run(BUSY_ACTOR, BUSY_LEARNER, ratio=32.0, is_free=True).binds == "neither"


def test_a_run_within_the_warm_up_has_no_update() -> None:
    found = run(BUSY_ACTOR, {"wait_data": 100.0}, ratio=0.0)
    assert found.binds == "warmup"
    assert "--replay.warmup-rows" in found.verdict
    found = run(HELD_ACTOR, {"wait_data": 10.0, "compile": 90.0}, ratio=0.0)
    assert "still compiling" in found.verdict


@pytest.mark.parametrize(
    ("phase", "words", "cure"),
    [
        ("sample", "25 % to sampling batches", "--local.prefetch"),
        ("priorities", "25 % to writing priorities back", "--replay.no-prioritized"),
        ("publish", "25 % to publishing weights", "--local.publish-every-updates"),
        ("checkpoint", "25 % to saving checkpoints", "--checkpoint.every-steps"),
        ("report", "25 % to reporting metrics", "--log.every-s"),
        ("compile", "25 % to compiling", "--compile auto"),
        ("transfer", "25 % to moving batches to the device", "uint8"),
    ],
)
def test_what_else_takes_more_than_a_tenth_is_named(phase: str, words: str, cure: str) -> None:
    found = run(HELD_ACTOR, {"compute": 75.0, phase: 25.0})
    assert f"75 % of its time went to updates, {words}, and the actors waited" in found.verdict
    assert cure in found.verdict
    assert words.removeprefix("25 % to ") not in run(HELD_ACTOR, {"compute": 91.0, phase: 9.0}).verdict


@pytest.mark.parametrize(
    ("phase", "words", "cure"),
    [
        ("write", "30 % to writing rows", "uint8"),
        ("fetch", "30 % to fetching weights", "--local.publish-every-s"),
        ("report", "30 % to reporting metrics", "--log.every-s"),
    ],
)
def test_what_holds_actors_up_is_named(phase: str, words: str, cure: str) -> None:
    found = run({"env": 70.0, phase: 30.0}, STARVED_LEARNER)
    assert f"70 % of their time went to env steps, {words}, and the learner waited" in found.verdict
    assert cure in found.verdict


def test_one_role_alone_is_told_by_its_work() -> None:
    for kind in ("learner", "sequential"):
        one = role(kind, {"env": 30.0, "infer": 9.0, "compute": 61.0})
        found = account([one], ratio_target=32, ratio=32, is_free=False)
        assert found.binds == "one"
        assert found.verdict.startswith(
            "One role did everything: 61 % of its time went to updates, 30 % to env steps. To"
        )
        assert "--local" not in found.verdict  # which one process refuses


def test_nothing_ran() -> None:
    found = account([], ratio_target=32, ratio=0, is_free=False)
    assert (found.binds, found.roles, found.warnings) == ("nothing", {}, ())
    found = account([role("actor", {})], ratio_target=32, ratio=0, is_free=False)
    assert found.binds == "nothing"
    assert found.roles["actor"].closed == 0
    assert found.warnings == ("actor has no time in the account: it never ran.",)


def test_the_warm_up_is_nobodys_wait() -> None:
    """Without it the same wait of the learner would make the actors bind, and be a warning."""
    learner = {"wait_data": 100.0, "compute": 97.0, "sample": 3.0}
    actor = {"env": 130.0, "infer": 30.0, "wait_ratio": 40.0}
    assert run(actor, learner, warmup_s=100.0).binds == "learner"
    assert run(actor, learner, warmup_s=100.0).warnings == ()
    assert run(actor, learner).binds == "actors"
    assert "20 % of their time for the ratio and the learner 50 % for data" in run(actor, learner).warnings[0]


# Shares, lives, and what is not as it should be.


def test_shares_are_of_each_roles_own_time() -> None:
    actors = [role("actor", {"env": 8.0, "wait_ratio": 2.0}, f"actor {i}", cpu_s=8.0) for i in range(2)]
    found = account([*actors, role("supervisor", {"watch": 19.0, "log": 1.0})], ratio_target=1, ratio=1, is_free=False)
    assert found.roles["actor 1"].phases["env"] == pytest.approx(0.8)
    assert found.roles["actor 1"].useful == pytest.approx(0.8)
    assert found.roles["actor 1"].cpu_share == pytest.approx(0.8)
    assert found.roles["supervisor"].phases["watch"] == pytest.approx(0.95)
    assert found.roles["supervisor"].useful == 0


def test_lives_of_a_role_are_added_up() -> None:
    lives = [
        role("actor", {"start": 1.0, "env": 9.0}, "actor 0", counters={"steps": 5}, gauges={"epsilon": 0.9}),
        role("actor", {"start": 1.0, "env": 29.0}, "actor 0", counters={"steps": 7}, gauges={"epsilon": 0.1}),
    ]
    found = account(lives, ratio_target=1, ratio=1, is_free=False)
    only = found.roles["actor 0"]
    assert (only.wall_s, only.starts) == (40.0, 2)
    assert only.phases["env"] == pytest.approx(38 / 40)
    assert found.warnings == ("actor 0 was started 2 times; the lines above say why it died.",)


def test_time_without_a_name_is_a_warning() -> None:
    one = role("learner", {"compute": 96.0}, wall_s=100.0)
    found = account([one], ratio_target=1, ratio=1, is_free=False)
    assert found.roles["learner"].closed == pytest.approx(0.96)
    assert found.warnings == ("learner: 4 % of its 100.0 s is missing from the account (no phase was marked).",)
    assert "unmarked 4" in table(found)
    assert not account(
        [role("learner", {"compute": 98.5}, wall_s=100.0)], ratio_target=1, ratio=1, is_free=False
    ).warnings


def test_more_time_than_there_was_is_a_warning() -> None:
    found = account([role("actor", {"env": 12.0}, wall_s=10.0)], ratio_target=1, ratio=1, is_free=False)
    assert found.roles["actor"].closed == 1.0
    assert "has marked 12.0 s in 10.0 s" in found.warnings[0]


def test_a_wait_of_both_sides_is_a_warning() -> None:
    found = run({"env": 94.0, "wait_ratio": 6.0}, {"compute": 75.0, "wait_data": 25.0})
    assert found.binds == "actors"
    assert found.warnings[0].startswith(
        "the actors waited 6 % of their time for the ratio and the learner 25 % for data; one"
    )
    assert run({"env": 96.0, "wait_ratio": 4.0}, {"compute": 75.0, "wait_data": 25.0}).warnings == ()


def test_a_ratio_that_was_missed_is_a_warning() -> None:
    assert "the replay ratio is 30 instead of 32" in run(HELD_ACTOR, BUSY_LEARNER, ratio=30.0).warnings[0]
    assert run(HELD_ACTOR, BUSY_LEARNER, ratio=31.0).warnings == ()
    assert run(BUSY_ACTOR, BUSY_LEARNER, ratio=30.0, is_free=True).warnings == ()


@pytest.mark.parametrize(
    ("kind", "counters", "gauges", "text"),
    [
        ("actor", {"dropped_messages": 1234}, {}, "dropped 1,234 log messages"),
        ("learner", {"samples": 1000, "redraws": 11}, {}, "sampled 11 of 1,000 rows again"),
        ("actor", {}, {"policy_lag": 101.0}, "weights 101 versions old"),
        ("actor", {"steps": 9, "fetched": 0, "published": 7}, {}, "fetched none of 7 versions"),
    ],
)
def test_counts_that_should_not_be_are_warnings(
    kind: str, counters: dict[str, int], gauges: dict[str, float], text: str
) -> None:
    def warnings(counters: dict[str, int], gauges: dict[str, float]) -> tuple[str, ...]:
        one = role(kind, {"env": 1.0, "compute": 9.0}, counters=counters, gauges=gauges)
        return account([one], ratio_target=1, ratio=1, is_free=False).warnings

    (found,) = warnings(counters, gauges)
    assert text in found
    fine = {"samples": 1000, "redraws": 10, "dropped_messages": 0, "steps": 9, "fetched": 1, "published": 7}
    assert warnings(fine, {"policy_lag": 100.0}) == ()


def test_a_learner_without_a_core_is_a_warning() -> None:
    def warnings(cpu_s: float) -> tuple[str, ...]:
        one = role("learner", {"compute": 80.0, "wait_data": 20.0}, cpu_s=cpu_s)
        return account([one], ratio_target=1, ratio=1, is_free=False).warnings

    assert "was at work for 80.0 s but had a core for only 40.0 s" in warnings(40.0)[0]
    assert warnings(70.0) == ()


def test_a_role_that_died_within_a_mark_is_told() -> None:
    found = account([role("actor", {"env": 5.0}, is_whole=False)], ratio_target=1, ratio=1, is_free=False)
    assert "died in the middle of a mark" in found.warnings[0]


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_a_figure_that_is_none_counts_as_no_time(value: float) -> None:
    broken = role("actor", {"env": 5.0, "infer": value}, wall_s=5.0, cpu_s=value, gauges={"memory_mb": value})
    found = account([broken], ratio_target=1, ratio=1, is_free=False, warmup_s=value)
    assert found.roles["actor"].phases["env"] == 1.0
    json.dumps(found.to_dict(), allow_nan=False)


# How it is shown.


def test_the_table_fits_a_terminal_and_ends_in_the_verdict() -> None:
    found = run({**HELD_ACTOR, "report": 0.1, "fetch": 0.3, "start": 2.0, "stop": 1.0}, BUSY_LEARNER, ratio=20.0)
    text = table(found)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert text.splitlines()[0].startswith("role ")
    assert "wait_ratio 69, env 19" in text
    assert "warning: the replay ratio is 20" in text
    assert re.sub(r"\s+", " ", text).endswith(found.verdict)
    assert "\x1b" not in text
    assert all(re.search(r"[0-9],?$", line) for line in text.splitlines()[1:4])


def test_many_actors_are_one_line() -> None:
    actors = [role("actor", {"env": 6.0 + i / 100, "infer": 4.0 - i / 100}, f"actor {i}") for i in range(101)]
    found = account(actors, ratio_target=1, ratio=1, is_free=False)
    assert len(found.roles) == 101
    assert "101 actors" in table(found)
    assert "env 65, infer 35" in table(found)
    assert len(table(found).splitlines()) < 8


def test_json_has_shares_verdict_and_warnings() -> None:
    one = role("learner", {"compute": 2.0, "sample": 1.0}, cpu_s=3.0, gauges={"memory_mb": 250.04}, starts=2)
    found = json.loads(json.dumps(account([one], ratio_target=1, ratio=1, is_free=False).to_dict()))
    assert set(found) == {"roles", "binds", "verdict", "warnings"}
    only = found["roles"]["learner"]
    assert (only["kind"], only["closed"], only["useful"], only["wall_s"]) == ("learner", 1.0, 0.6667, 3.0)
    assert (only["starts"], only["cpu_share"], only["memory_mb"]) == (2, 1.0, 250.0)
    assert only["phases"]["sample"] == 0.3333
    assert set(only["phases"]) == set(phases.LEARNER)
    assert "2 times" in found["warnings"][0]


def test_metrics_are_named_by_role_and_phase() -> None:
    found = run(HELD_ACTOR, BUSY_LEARNER).metrics()
    assert found["account/actor_0/wait_ratio"] == pytest.approx(0.71)
    assert found["account/learner/compute"] == pytest.approx(0.96)
    assert found["account/learner/closed"] == pytest.approx(1.0)
    assert "account/learner/env" not in found


def test_waiting_for_other_workers_is_no_useful_work() -> None:
    found = run(HELD_ACTOR, {"compute": 70.0, "wait_workers": 28.0, "sample": 2.0})
    assert found.roles["learner"].useful == pytest.approx(0.7)
    assert "28 % to waiting for gradient workers" in found.verdict
    assert "--learner.workers 1" in found.verdict
    assert any("waited 28 % of its time for gradient workers" in warning for warning in found.warnings)
    assert not run(HELD_ACTOR, {"compute": 95.0, "wait_workers": 5.0}).warnings
