"""Warnings of an account: each says who, how much, and what to do."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from freewheel.report.role_time import RoleTime
from freewheel.report.verdict import KEEPS_UP, RATIO_MISSED, Side, percent

# Phases add up to at least this share of wall time.
CLOSED = 0.98
# With the defaults a version is 8 updates and the target network is copied every 250: this is three copies ago.
MOST_LAG = 100
# Sampling one row again is cheap; this many mean that actors overwrite the replay too fast for the learner.
MOST_REDRAWS = 0.01
# A busy role that runs less of the time than this shared its core; start-up and disk writes explain less.
LEAST_CPU = 0.7
NOT_AT_WORK = ("start", "wait_data", "wait_workers", "compile", "checkpoint", "stop")
# Gradient workers have equal parts of a batch, so their gradients should arrive at about the same time.
MOST_WORKERS = 0.1
FRESHER = "Use fewer lanes per actor, or more actors (local.actors), or lower local.fetch_every_steps and local.fetch_every_s if you set them."


def find_warnings(
    roles: Sequence[RoleTime], actors: Side, learners: Side, ratio_target: float, ratio: float, is_free: bool
) -> list[str]:
    """All warnings of an account: first about the run, then about each role."""
    published = sum(role.counters.get("published", 0) for role in roles)
    found = [*_of_run(actors, learners, ratio_target, ratio, is_free)]
    for role in roles:
        found += [*_of_time(role), *_of_counts(role, published)]
    return found


def _of_run(actors: Side, learners: Side, ratio_target: float, ratio: float, is_free: bool) -> Iterator[str]:
    # The ratio makes the faster side wait for the slower one. The slower one should not wait.
    held, starved = actors.wait, learners.wait
    if ratio_target > 0 and min(held, starved) > KEEPS_UP:
        yield (
            f"the actors waited {percent(held)} of their time for the ratio and the learner {percent(starved)} for data; one "
            "of the two should hardly wait. Raise local.slack_steps, or run fewer roles than cores."
        )
    if not is_free and ratio > 0 and ratio_target > 0 and abs(ratio / ratio_target - 1) > RATIO_MISSED:
        yield (
            f"the replay ratio is {ratio:.3g} instead of {ratio_target:.3g}. Run longer, or lower local.slack_steps and "
            "learner.updates_per_call."
        )


def _of_time(role: RoleTime) -> Iterator[str]:
    marked_s = math.fsum(role.phases.values())
    if role.wall_s <= 0:
        if marked_s <= 0:
            yield f"{role.name} has no time in the account: it never ran."
        return
    if marked_s < CLOSED * role.wall_s:
        missing = percent(1 - marked_s / role.wall_s)
        why = "before its first mark, or lost when it died" if role.starts > 1 else "no phase was marked"
        yield f"{role.name}: {missing} of its {role.wall_s:.1f} s is missing from the account ({why})."
    if marked_s * CLOSED > role.wall_s:
        yield f"{role.name} has marked {marked_s:.1f} s in {role.wall_s:.1f} s: its shares are of {marked_s:.1f} s."
    if (waited_s := role.phases.get("wait_workers", 0.0)) > MOST_WORKERS * role.wall_s:
        yield (
            f"{role.name} waited {percent(waited_s / role.wall_s)} of its time for gradient workers. Use fewer of them "
            "(learner.workers), or run fewer other programs."
        )
    if role.kind == "learner" and role.cpu_s > 0:
        idle_s = sum(role.phases.get(name, 0.0) for name in NOT_AT_WORK)
        busy_s = role.wall_s - idle_s
        if role.cpu_s < LEAST_CPU * busy_s:
            yield (
                f"{role.name} was at work for {busy_s:.1f} s but had a core for only {role.cpu_s:.1f} s. Run fewer other "
                "programs, or fewer actors (local.actors) if there are several."
            )


def _of_counts(role: RoleTime, published: int) -> Iterator[str]:
    counters = role.counters
    if not role.is_whole:
        yield f"{role.name} died in the middle of a mark: its numbers may be incomplete."
    if role.starts > 1:
        yield f"{role.name} was started {role.starts} times; the lines above say why it died."
    if (dropped := counters.get("dropped_messages", 0)) > 0:
        yield f"{role.name} dropped {dropped:,} log messages. Raise log.every_s, or write to a faster disk."
    samples, redraws = counters.get("samples", 0), counters.get("redraws", 0)
    if redraws > MOST_REDRAWS * samples:
        yield (
            f"{role.name} sampled {redraws:,} of {samples:,} rows again, because actors overwrote them. Raise replay.rows."
        )
    if role.kind != "actor":
        return
    if published > 1 and counters.get("steps", 0) > 0 and counters.get("fetched", 0) == 0 and "fetched" in counters:
        yield (
            f"{role.name} fetched none of {published:,} versions of the weights: it acted with the first one. {FRESHER}"
        )
    if (lag := role.gauges.get("policy_lag", 0.0)) > MOST_LAG:
        yield f"{role.name} acts with weights {lag:,.0f} versions old: its turns take too long, or it fetches too seldom. {FRESHER}"
