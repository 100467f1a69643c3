"""`freewheel bench dqn`: sequential training on CartPole from end to end, ours against SB3's DQN at the same ratio."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from freewheel.bench import installed
from freewheel.bench.child import Child, PeerFailed
from freewheel.bench.harness import OURS, Case, describe_machine, median, progress, report, shown, warn_if_busy
from freewheel.bench.peers.dqn_settings import BATCH, STEPS_PER_UPDATE
from freewheel.bench.settings import DqnSettings, check_rounds
from freewheel.errors import ConfigError, FreewheelError

PEER = "sb3"
NAME = f"dqn/cartpole/{BATCH}"
GOAL = 2.0
MODULES = {OURS: "freewheel.bench.dqn_ours", PEER: "peers.dqn_sb3"}

# The first round tries every configuration; so many of each side go on to the others.
NUM_FINALISTS = 2
# Compiling 8 updates takes a minute on a busy machine.
TRAIN_TIMEOUT_S = 300.0
# A window begins and ends between two calls of the learner, which may make 8 updates: more than this is another ratio.
RATIO_TOLERANCE = 0.02

Figures = dict[str, float]


@dataclass
class Configuration:
    """One side's training with one number of envs, and what its windows gave."""

    side: str
    name: str
    python: Path
    order: dict[str, Any]
    windows: list[Figures] = field(default_factory=list)

    def speeds(self) -> list[float]:
        return [window["steps_per_s"] for window in self.windows]

    def updates_per_step(self) -> float:
        return median([window["updates_per_step"] for window in self.windows])

    def record(self) -> dict[str, Any]:
        return {
            "steps_per_s": shown(median(self.speeds())),
            "updates_per_step": shown(self.updates_per_step()),
            "startup_s": shown(median([window["startup_s"] for window in self.windows])),
            "windows": len(self.windows),
        }


def run(settings: DqnSettings) -> list[Case]:
    """Measure, print, and give the case."""
    everybody = plan(settings)
    missing: dict[str, str] = {}
    versions: dict[str, str] = {}
    machine = describe_machine({})
    warn_if_busy(machine)
    with progress("bench dqn", len(everybody)) as bar:
        for turn in range(settings.rounds):
            chosen = everybody if turn == 0 else finalists(everybody)
            if turn == 1:
                bar.grow(len(chosen) * (settings.rounds - 1))
            for configuration in chosen:
                bar.show(f"round {turn + 1}: {configuration.side} {configuration.name}")
                if configuration.name not in missing:
                    _measure(configuration, settings, missing, versions)
                bar.advance()
    machine["versions"] |= {side: version for side, version in versions.items() if side != OURS}
    case = make_case([c for c in everybody if c.windows and c.name not in missing], missing)
    report("dqn", machine, [case], as_json=settings.json)
    return [case]


def plan(settings: DqnSettings) -> list[Configuration]:
    """Everything to try; the sides take turns, so that a disturbance of the machine hits both alike."""
    check_rounds(settings.rounds, settings.seconds)
    if not 0 <= settings.warm_s <= 60:
        raise ConfigError(f"--warm-s {settings.warm_s} must be between 0 and 60.")
    for flag, numbers in (("lanes", settings.lanes), ("envs", settings.envs), ("threads", settings.threads)):
        if not numbers or min(numbers) < 1:
            raise ConfigError(f"--{flag} {','.join(map(str, numbers))} must be one or more positive numbers.")
    for envs in settings.envs:
        if envs % STEPS_PER_UPDATE and STEPS_PER_UPDATE % envs:
            raise ConfigError(
                f"--envs {envs} cannot make one update per {STEPS_PER_UPDATE} steps: a peer trains after whole turns of its "
                f"envs. Choose divisors or multiples of {STEPS_PER_UPDATE}."
            )
    forms = installed.check_names(settings.forms, ("eager", "compiled"), "form of ours")
    if not forms:
        raise ConfigError("--forms none leaves nothing to measure. Choose from eager, compiled.")
    here = Path(sys.executable)
    ours = [
        Configuration(
            OURS,
            f"{form}, {_count(lanes, 'lane')}",
            here,
            {"envs": lanes, "threads": 1, "is_compiled": form == "compiled"},
        )
        for lanes in settings.lanes
        for form in forms
    ]
    python = peer_python(settings.against)
    theirs = [
        Configuration(
            PEER,
            f"{_count(envs, 'env')}, {_count(threads, 'thread')}",
            python,
            {"envs": envs, "threads": threads},
        )
        for envs in settings.envs
        for threads in settings.threads
        if python is not None
    ]
    longest = max(len(ours), len(theirs))
    return [side[i] for i in range(longest) for side in (ours, theirs) if i < len(side)]


def peer_python(against: Sequence[str] | None) -> Path | None:
    """The interpreter that has the peer; None when it is not to be run, or is missing and was not asked for."""
    if against is not None and not installed.check_names(against, (PEER,), "peer"):
        return None
    python = installed.find_python()
    if python is None and against is None:
        print(installed.HOW_TO_GET, file=sys.stderr)
        return None
    installed.choose((PEER,), python)
    return python


def finalists(everybody: Sequence[Configuration]) -> list[Configuration]:
    """The fastest of each side so far, in the order of the plan."""
    best: list[Configuration] = []
    for side in MODULES:
        measured = [c for c in everybody if c.side == side and c.windows]
        best += sorted(measured, key=lambda c: median(c.speeds()), reverse=True)[:NUM_FINALISTS]
    return [configuration for configuration in everybody if configuration in best]


def make_case(measured: Sequence[Configuration], missing: dict[str, str]) -> Case:
    """The best configuration of each side; those that were repeated go before those of the first round alone."""
    most = max((len(c.windows) for c in measured), default=0)
    best: dict[str, Configuration] = {}
    for side in MODULES:
        repeated = [c for c in measured if c.side == side and len(c.windows) == most]
        rest = repeated or [c for c in measured if c.side == side]
        if rest:
            best[side] = max(rest, key=lambda c: median(c.speeds()))
    if OURS not in best:
        raise FreewheelError("none of our trainings gave a figure; each one's last lines are above.")
    case = Case(NAME, "steps/s", best[OURS].speeds(), goal=GOAL)
    if PEER in best:
        case.peers[PEER] = best[PEER].speeds()
    case.extra = {
        "best": {side: configuration.name for side, configuration in best.items()},
        "updates_per_step": {side: shown(configuration.updates_per_step()) for side, configuration in best.items()},
        "configurations": {side: {c.name: c.record() for c in measured if c.side == side} for side in best},
        "notes": [_line(c, c is best[c.side]) for c in measured],
    }
    if missing:
        case.extra["missing"] = missing
    return case


def _measure(
    configuration: Configuration, settings: DqnSettings, missing: dict[str, str], versions: dict[str, str]
) -> None:
    """One window in a fresh process; a configuration that fails is told of, and not tried again."""
    side, name = configuration.side, configuration.name
    order = {"op": "train", "warm_s": settings.warm_s, "seconds": settings.seconds, **configuration.order}
    timeout_s = TRAIN_TIMEOUT_S + settings.warm_s + 3 * settings.seconds
    try:
        with Child(f"{side} ({name})", configuration.python, "dqn_worker", MODULES[side]) as child:
            versions[side] = child.greeting["version"]
            configuration.windows.append(child.ask(order, timeout_s))
    except PeerFailed as error:
        print(f"{error}\n{side} ({name}) is left out.", file=sys.stderr)
        missing[name] = str(error).splitlines()[0]


def _line(configuration: Configuration, is_best: bool) -> str:
    done, wanted = configuration.updates_per_step(), 1 / STEPS_PER_UPDATE
    verdict = "; its best" if is_best else ""
    if abs(done - wanted) > RATIO_TOLERANCE * wanted:
        verdict += f"; NOT the ratio of {wanted} that was asked for"
    return (
        f"{configuration.side}, {configuration.name}: {median(configuration.speeds()):,.0f} steps/s, {done:.4f} updates "
        f"per step{verdict}."
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
