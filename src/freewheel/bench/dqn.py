"""`freewheel bench dqn`: training on CartPole from end to end at one ratio, ours against other projects' and against itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from freewheel.bench.account import sentence
from freewheel.bench.dqn_plan import PEERS, PLAIN_IQN, SEQUENTIAL, chosen_cases, plan
from freewheel.bench.harness import OURS, Case, describe_machine, progress, report, shown, warn_if_busy
from freewheel.bench.peers.dqn_settings import BATCH, ENV, STEPS_PER_UPDATE
from freewheel.bench.settings import DqnSettings
from freewheel.bench.trainings import Configuration, best_of, finalists
from freewheel.errors import FreewheelError

GOALS = {"dqn": 6.0, "per": 0.95, "iqn": 5.0}
UNIFORM = "uniform"

# The first round tries every configuration; so many of each side go on to the others.
NUM_FINALISTS = 2


def run(settings: DqnSettings) -> list[Case]:
    """Measure, print, and give the cases."""
    everybody = plan(settings)
    versions: dict[str, str] = {}
    machine = describe_machine({})
    warn_if_busy(machine)
    with progress("bench dqn", len(everybody)) as bar:
        for turn in range(settings.rounds):
            chosen = everybody if turn == 0 else finalists(everybody, NUM_FINALISTS)
            if turn == 1:
                bar.grow(len(chosen) * (settings.rounds - 1))
            for configuration in chosen:
                bar.show(f"round {turn + 1}: {configuration.label}")
                configuration.measure(settings.warm_s, settings.seconds, versions)
                bar.advance()
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
            f"{_why(kind, everybody)}."
        )
    best = {OURS: own}
    case = Case(f"{kind}/{ENV}/{BATCH}", "steps/s", own.speeds(), goal=GOALS[kind])
    for peer in (*PEERS, PLAIN_IQN):
        found = best_of(everybody, kind, peer)
        if found is not None:
            best[peer] = found
            case.peers[peer] = found.speeds()
    in_turn = best_of(everybody, kind, SEQUENTIAL)
    if in_turn is not None:
        best[SEQUENTIAL] = in_turn
        case.baselines[SEQUENTIAL] = in_turn.speeds()
    if kind == "per":
        uniform = best_of(everybody, "dqn", OURS)
        if uniform is not None:
            best[UNIFORM] = uniform
            case.baselines[UNIFORM], case.baseline = uniform.speeds(), UNIFORM
    case.extra = details(kind, everybody, best)
    return case


def details(kind: str, everybody: Sequence[Configuration], best: dict[str, Configuration]) -> dict[str, Any]:
    tried = [c for c in everybody if c.kind == kind]
    measured = [c for c in tried if c.windows]
    sides = dict.fromkeys(c.side for c in measured)
    extra: dict[str, Any] = {
        "best": {side: configuration.name for side, configuration in best.items()},
        "ratios": {side: shown(configuration.ratio()) for side, configuration in best.items()},
        "updates_per_step": {side: shown(configuration.updates_per_step()) for side, configuration in best.items()},
        "configurations": {side: {c.name: c.record() for c in measured if c.side == side} for side in sides},
        "notes": [line(c, c in best.values()) for c in measured],
    }
    account = best[OURS].account()
    if account:
        extra["account"] = account
        extra["notes"].append(f"{best[OURS].label}: {sentence(account)}")
    missing = {c.label: c.problem for c in tried if c.problem}
    return {**extra, "missing": missing} if missing else extra


def line(configuration: Configuration, is_best: bool) -> str:
    verdict = "; its best" if is_best else ""
    if not configuration.holds_ratio():
        verdict = f"; NOT the ratio of {BATCH / STEPS_PER_UPDATE:g} that was asked for, so it does not count"
    return f"{configuration.label}: {configuration.speed():,.0f} steps/s, ratio {configuration.ratio():.2f}{verdict}."


def _why(kind: str, everybody: Sequence[Configuration]) -> str:
    off = [c for c in everybody if (c.kind, c.side) == (kind, OURS) and c.windows and not c.holds_ratio()]
    if off:
        return "they ran at " + ", ".join(f"a ratio of {c.ratio():.1f} ({c.name})" for c in off)
    return "each one's last lines are above"
