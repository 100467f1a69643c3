"""`python -m benchmarks control`: SAC on Pendulum and HalfCheetah with one update per step, against other projects and against the arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.compare_trainings import best_of, details, measure_all, why_nothing
from benchmarks.control.plan import LIMIT, PEERS, plan
from benchmarks.peers.control_settings import BATCH
from benchmarks.settings import ControlSettings
from freewheel.bench.harness import OURS, Case, describe_machine, report, shown, warn_if_busy
from freewheel.bench.trainings import Configuration
from freewheel.errors import FreewheelError

GOAL, SHARE_GOAL = 1.5, 0.85


def run(settings: ControlSettings) -> list[Case]:
    """Measure, print, and give the cases."""
    everybody = plan(settings)
    machine = describe_machine({})
    warn_if_busy(machine)
    versions = measure_all("bench control", everybody, settings.rounds, settings.warm_s, settings.seconds)
    machine["versions"] |= {side: version for side, version in versions.items() if side not in (OURS, LIMIT)}
    cases = [make_case(env, everybody) for env in dict.fromkeys(one.kind for one in everybody)]
    report("control", machine, cases, as_json=settings.json)
    return cases


def make_case(env: str, everybody: Sequence[Configuration]) -> Case:
    """The best configuration of each side. The bare updates are a baseline that nobody can pass, and no peer."""
    own = best_of(everybody, env, OURS)
    if own is None:
        raise FreewheelError(
            f"{env}: none of our trainings gave a figure at one update per step; {why_nothing(env, everybody)}."
        )
    best = {OURS: own}
    case = Case(f"control/{env}/{BATCH}", "steps/s", own.speeds(), goal=GOAL)
    for peer in PEERS:
        found = best_of(everybody, env, peer)
        if found is not None:
            best[peer] = found
            case.peers[peer] = found.speeds()
    limit = best_of(everybody, env, LIMIT)
    if limit is not None:
        best[LIMIT] = limit
        case.baselines[LIMIT] = limit.speeds()
    case.extra = details(env, everybody, best)
    if limit is not None:
        shares = {side: shown(one.speed() / limit.speed()) for side, one in best.items() if side != LIMIT}
        case.extra |= {"share_of_arithmetic": shares, "share_goal": SHARE_GOAL}
        said = ", ".join(f"{side} {100 * share:.0f} %" for side, share in shares.items())
        case.extra["notes"].append(
            f"{case.name}: the updates alone allow {limit.speed():,.0f} steps/s ({limit.name}); of that {said}."
        )
    return case
