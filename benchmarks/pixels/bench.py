"""`python -m benchmarks pixels`: learning from images, a training on Atari from end to end and a large learner's update step by step."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.compare_trainings import best_of, details, measure_all, why_nothing
from benchmarks.peers import pixels_settings as same
from benchmarks.pixels import mario
from benchmarks.pixels.bounds import replay_cases, training_cases
from benchmarks.pixels.limit import arithmetic_s, convert_s
from benchmarks.pixels.plan import ATARI, PEERS, check, plan
from benchmarks.pixels.settings import PixelsSettings
from freewheel.bench.harness import OURS, Case, describe_machine, report, shown, warn_if_busy
from freewheel.bench.trainings import Configuration
from freewheel.errors import FreewheelError

GOAL, LIMIT_GOAL, MARIO_GOAL = 2.0, 0.6, 1.8
LIMIT = "limit"


def run(settings: PixelsSettings) -> list[Case]:
    """Measure, print, and give the cases."""
    chosen = check(settings)
    machine = describe_machine({})
    warn_if_busy(machine)
    cases: list[Case] = []
    if "atari" in chosen:
        env, everybody = plan(settings)
        versions = measure_all("bench pixels", everybody, settings.rounds, settings.warm_s, settings.seconds)
        machine["versions"] |= {side: version for side, version in versions.items() if side != OURS}
        cases += atari_cases(env, everybody, machine["cores"])
    if "mario" in chosen:
        cases.append(mario.case(settings, machine["cores"], MARIO_GOAL))
    cases += replay_cases()
    report("pixels", machine, cases, as_json=settings.json)
    return cases


def atari_cases(env: str, everybody: Sequence[Configuration], cores: int) -> list[Case]:
    """Against the better peer, and against what the arithmetic of the updates alone would allow."""
    own = best_of(everybody, ATARI, OURS)
    if own is None:
        raise FreewheelError(
            f"{ATARI}: none of our trainings gave a figure that counts; {why_nothing(ATARI, everybody)}."
        )
    best = {OURS: own}
    case = Case(ATARI, "rows/s", own.speeds(), goal=GOAL)
    for peer in PEERS:
        found = best_of(everybody, ATARI, peer)
        if found is not None:
            best[peer] = found
            case.peers[peer] = found.speeds()
    case.extra = {**details(ATARI, everybody, best), "env": env, "locks": 0}  # there is none to wait for
    converted_s, each_s = convert_s(cores, own.order["form"])
    bounds = training_cases(own, everybody, converted_s)
    case.extra["convert_ms"] = [shown(1e3 * one) for one in each_s]
    if not any(bound.name.startswith("pixels/path") for bound in bounds):
        case.extra["notes"].append(
            f"{ATARI}: the windows are too short to tell what images cost apart from the network."
        )
    seconds, form = arithmetic_s(cores)
    limit = Case(f"pixels/arithmetic/{same.BATCH}", "rows/s", own.speeds(), goal=LIMIT_GOAL)
    limit.baselines, limit.baseline = {LIMIT: [same.STEPS_PER_UPDATE / seconds]}, LIMIT
    limit.extra = {"arithmetic_ms": shown(1e3 * seconds), "form": form}
    limit.extra["arithmetic_share"] = shown(own.speed() * seconds / same.STEPS_PER_UPDATE)
    limit.extra["notes"] = [
        f"{limit.name}: the products and convolutions of one update alone take {1e3 * seconds:.3g} ms ({form})."
    ]
    return [case, limit, *bounds]
