"""`python -m benchmarks ppo`: training from end to end by PPO, ours against other projects' and against itself, and slow envs against their limit."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.compare_trainings import best_of, details, measure_all, why_nothing
from benchmarks.peers.slow_env import STEP_S
from benchmarks.ppo.plan import PEERS, SUBPROC, case_name, chosen_cases, plan, slow_name
from benchmarks.settings import PpoSettings
from freewheel.bench.harness import OURS, Case, describe_machine, report, shown, warn_if_busy
from freewheel.bench.trainings import Configuration
from freewheel.errors import FreewheelError

GOALS = {"ppo": 3.0, "appo": 1.0, "busy": 0.9, "sleep": 3.0}
PPO, LIMIT = "ppo", "limit"


def run(settings: PpoSettings) -> list[Case]:
    """Measure, print, and give the cases."""
    everybody = plan(settings)
    machine = describe_machine({})
    warn_if_busy(machine)
    versions = measure_all("bench ppo", everybody, settings.rounds, settings.warm_s, settings.seconds)
    machine["versions"] |= {side: version for side, version in versions.items() if side != OURS}
    cases = make_cases(settings, everybody, machine["cores"])
    report("ppo", machine, cases, as_json=settings.json)
    return cases


def make_cases(settings: PpoSettings, everybody: Sequence[Configuration], cores: int) -> list[Case]:
    chosen = chosen_cases(settings.cases)
    cases = []
    for algo in ("ppo", "appo"):
        if algo in chosen:
            cases += [make_case(algo, lanes, everybody) for lanes in settings.lanes]
    if "slow" in chosen:
        cases += [slow_case(kind, lanes, everybody, cores) for kind in settings.slow for lanes in settings.slow_lanes]
    return cases


def make_case(algo: str, lanes: int, everybody: Sequence[Configuration]) -> Case:
    """The best configuration of each side; ppo is compared with the best peer, appo with our own ppo."""
    kind = case_name(algo, lanes)
    best = {OURS: best_of_ours(kind, everybody)}
    case = Case(kind, "steps/s", best[OURS].speeds(), goal=GOALS[algo])
    for peer in PEERS:
        found = best_of(everybody, kind, peer)
        if found is not None:
            best[peer] = found
            case.peers[peer] = found.speeds()
    if algo == "appo":
        best[PPO] = best_of_ours(case_name("ppo", lanes), everybody)
        case.baselines[PPO], case.baseline = best[PPO].speeds(), PPO
    case.extra = details(kind, everybody, best)
    return case


def slow_case(kind: str, lanes: int, everybody: Sequence[Configuration], cores: int) -> Case:
    """Busy envs are compared with what the cores can compute, sleeping ones with a process for each."""
    name = slow_name(kind, lanes)
    best = {OURS: best_of_ours(name, everybody)}
    limit = (cores if kind == "busy" else lanes) / STEP_S
    case = Case(name, "rows/s", best[OURS].speeds(), baselines={LIMIT: [limit]}, goal=GOALS[kind])
    if kind == "busy":
        case.baseline = LIMIT
    found = best_of(everybody, name, SUBPROC)
    if found is not None:
        best[SUBPROC] = found
        case.peers[SUBPROC] = found.speeds()
    case.extra = {**details(name, everybody, best), "share_of_limit": shown(best[OURS].speed() / limit)}
    return case


def best_of_ours(kind: str, everybody: Sequence[Configuration]) -> Configuration:
    own = best_of(everybody, kind, OURS)
    if own is None:
        raise FreewheelError(
            f"{kind}: none of our trainings gave a figure that counts; {why_nothing(kind, everybody)}."
        )
    return own
