"""Which trainings `benchmarks dqn` tries: ours in each form, every peer with each number of envs and threads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.compare_trainings import interleaved, side_pythons
from benchmarks.installed import HERE, PEER_PATH
from benchmarks.settings import DqnSettings
from freewheel.bench.checks import check_names, check_numbers, check_training
from freewheel.bench.dqn_training import MODULE, order_of
from freewheel.bench.harness import OURS
from freewheel.bench.trainings import Configuration, count
from freewheel.bench.worker.dqn_settings import STEPS_PER_UPDATE
from freewheel.errors import ConfigError

CASES = ("dqn", "per", "iqn")
FORMS = ("compiled", "eager", "sequential")
SEQUENTIAL = "sequential"
PLAIN_IQN = "plain_iqn"
# Those that other projects wrote run in the peers' interpreter; loops of our own need nothing but torch and gymnasium.
INSTALLED = {"sb3": "benchmarks.peers.dqn_sb3", "sbx": "benchmarks.peers.dqn_sbx"}
OWN_LOOPS = {"cleanrl-style": "benchmarks.peers.dqn_cleanrl_style"}
PEERS = (*INSTALLED, *OWN_LOOPS)
# CleanRL's script for DQN takes a single env and refuses more: so does the loop like it.
ONE_ENV = ("cleanrl-style",)


def plan(settings: DqnSettings) -> list[Configuration]:
    """Everything to try, the sides in turns."""
    check(settings)
    cases = chosen_cases(settings.cases)
    groups: dict[str, list[Configuration]] = {}
    if "dqn" in cases or "per" in cases:
        groups["ours"] = ours("dqn", settings)
    if "dqn" in cases:
        for peer, (python, module) in peer_pythons(settings.against).items():
            groups[peer] = theirs("dqn", peer, python, module, settings)
    if "per" in cases:
        groups["per"] = ours("per", settings)
    if "iqn" in cases:
        groups["iqn"] = ours("iqn", settings)
        groups[PLAIN_IQN] = theirs("iqn", PLAIN_IQN, HERE, "benchmarks.peers.iqn_plain", settings)
    return interleaved(groups)


def check(settings: DqnSettings) -> None:
    check_training(settings.seconds, settings.warm_s, settings.rounds)
    check_numbers(lanes=settings.lanes, envs=settings.envs, threads=settings.threads)
    for envs in settings.envs:
        if envs % STEPS_PER_UPDATE and STEPS_PER_UPDATE % envs:
            raise ConfigError(
                f"--envs {envs} cannot make one update per {STEPS_PER_UPDATE} steps: a peer trains after whole turns of its "
                f"envs. Choose divisors or multiples of {STEPS_PER_UPDATE}."
            )
    forms = check_names(settings.forms, FORMS, "form of ours")
    if not set(forms) & {"compiled", "eager"}:
        raise ConfigError(
            f"--forms {','.join(settings.forms)} leaves nothing to compare. Choose compiled, eager or both."
        )


def chosen_cases(asked: Sequence[str] | None) -> list[str]:
    cases = list(CASES) if asked is None else check_names(asked, CASES, "case")
    if not cases:
        raise ConfigError(f"--cases none leaves nothing to measure. Choose from {', '.join(CASES)}.")
    return cases


def ours(kind: str, settings: DqnSettings) -> list[Configuration]:
    """Only plain DQN is tried in all forms: the others compare like with like, in the form that is fastest there."""
    forms = [form for form in settings.forms if form != SEQUENTIAL]
    if kind != "dqn":
        forms = ["compiled"] if "compiled" in forms else forms[:1]
    found = [_one(kind, OURS, form, lanes, settings.runtime) for form in forms for lanes in settings.lanes]
    if kind == "dqn" and SEQUENTIAL in settings.forms and settings.runtime != SEQUENTIAL:
        form = "compiled" if "compiled" in forms else "eager"
        found.append(_one(kind, SEQUENTIAL, form, max(settings.lanes), SEQUENTIAL))
    return found


def _one(kind: str, side: str, form: str, lanes: int, runtime: str) -> Configuration:
    order = order_of(
        lanes=lanes,
        runtime=runtime,
        is_compiled=form == "compiled",
        algo="iqn" if kind == "iqn" else "dqn",
        is_prioritized=kind == "per",
    )
    return Configuration(kind, side, f"{runtime}, {form}, {count(lanes, 'lane')}", HERE, MODULE, order)


def theirs(kind: str, side: str, python: Path, module: str, settings: DqnSettings) -> list[Configuration]:
    return [
        Configuration(
            kind,
            side,
            f"{count(envs, 'env')}, {count(threads, 'thread')}",
            python,
            module,
            {"envs": envs, "threads": threads},
            path=PEER_PATH,
        )
        for envs in ((1,) if side in ONE_ENV else reversed(settings.envs))
        for threads in settings.threads
    ]


def peer_pythons(against: Sequence[str] | None) -> dict[str, tuple[Path, str]]:
    """Interpreter and module of each peer to run; those that are missing and were not asked for are named on stderr."""
    return side_pythons(against, INSTALLED, OWN_LOOPS)
