"""`python -m benchmarks dqn`: training on CartPole from end to end at one ratio, ours against other projects' and against itself."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.compare_trainings import best_of, details, measure_all, why_nothing
from benchmarks.dqn.plan import PEERS, PLAIN_IQN, SEQUENTIAL, chosen_cases, plan
from benchmarks.settings import DqnSettings
from freewheel.bench.harness import OURS, Case, describe_machine, report, warn_if_busy
from freewheel.bench.trainings import Configuration
from freewheel.bench.worker.dqn_settings import BATCH, ENV, STEPS_PER_UPDATE
from freewheel.errors import FreewheelError

GOALS = {"dqn": 6.0, "per": 0.95, "iqn": 5.0}
UNIFORM = "uniform"


def run(settings: DqnSettings) -> list[Case]:
    """Measure, print, and give the cases."""
    everybody = plan(settings)
    machine = describe_machine({})
    warn_if_busy(machine)
    versions = measure_all("bench dqn", everybody, settings.rounds, settings.warm_s, settings.seconds)
    machine["versions"] |= {side: version for side, version in versions.items() if side not in (OURS, SEQUENTIAL)}
    cases = [make_case(kind, everybody) for kind in chosen_cases(settings.cases)]
    if settings.runtime == SEQUENTIAL:
        for case in cases:
            case.goal = None  # they are for free-running roles
    report("dqn", machine, cases, as_json=settings.json)
    return cases


def make_case(kind: str, everybody: Sequence[Configuration]) -> Case:
    """The best configuration of each side; the ratio is against the best peer, or against our own uniform."""
    own = best_of(everybody, kind, OURS)
    if own is None:
        raise FreewheelError(
            f"{kind}: none of our trainings gave a figure at one update per {STEPS_PER_UPDATE} steps; "
            f"{why_nothing(kind, everybody)}."
        )
    best = {OURS: own}
    case = Case(f"{kind}/{ENV}/{BATCH}", "steps/s", own.speeds(), goal=GOALS[kind])
    for peer in (*PEERS, PLAIN_IQN):
        found = best_of(everybody, kind, peer)
        if found is not None:
            best[peer] = found
            case.peers[peer] = found.speeds()
    sequential = best_of(everybody, kind, SEQUENTIAL)
    if sequential is not None:
        best[SEQUENTIAL] = sequential
        case.baselines[SEQUENTIAL] = sequential.speeds()
    if kind == "per":
        uniform = best_of(everybody, "dqn", OURS)
        if uniform is not None:
            best[UNIFORM] = uniform
            case.baselines[UNIFORM], case.baseline = uniform.speeds(), UNIFORM
    case.extra = details(kind, everybody, best)
    return case
