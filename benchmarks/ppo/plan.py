"""Which trainings `benchmarks ppo` tries: ours in each form, every peer with each number of threads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.compare_trainings import interleaved, side_pythons
from benchmarks.installed import HERE, OUR_PATH, PEER_PATH
from benchmarks.peers.ppo_settings import (
    ENV,
    ROLLOUT,
    SLOW_ROLLOUT,
    UPDATES_PER_ROLLOUT,
    rows_per_update,
    steps_per_update,
)
from benchmarks.peers.slow_env import KINDS
from benchmarks.ppo.training import order_of
from benchmarks.settings import PpoSettings
from freewheel.bench.checks import check_names, check_numbers, check_training
from freewheel.bench.harness import OURS
from freewheel.bench.trainings import Configuration, Pace, count
from freewheel.errors import ConfigError

CASES = ("ppo", "appo", "slow")
FORMS = ("compiled", "eager")
WORLDS = ("inline", "vector")
RUNTIMES = ("sequential", "local")
MODULE = "benchmarks.ppo.training"
# Those that other projects wrote run in the peers' interpreters; loops of our own need nothing but torch and gymnasium.
INSTALLED = {
    "sb3": "benchmarks.peers.ppo_sb3",
    "sbx": "benchmarks.peers.ppo_sbx",
    "pufferlib": "benchmarks.peers.ppo_puffer",
    "sample-factory": "benchmarks.peers.ppo_sample_factory",
}
OWN_LOOPS = {"cleanrl-style": "benchmarks.peers.ppo_cleanrl_style"}
PEERS = (*INSTALLED, *OWN_LOOPS)
# Sample Factory in one process (0), and as it is meant to run.
SF_WORKERS = (0, 2)
# Only sleeping envs are compared with a peer, SB3 with a process for each env: for busy ones the cores are the limit.
SLOW_PEER = "sb3"
SUBPROC = "sb3-subproc"


def plan(settings: PpoSettings) -> list[Configuration]:
    """Everything to try, the sides in turns."""
    check(settings)
    cases = chosen_cases(settings.cases)
    needs_peers = "ppo" in cases or ("slow" in cases and "sleep" in settings.slow)
    peers = side_pythons(settings.against, INSTALLED, OWN_LOOPS) if needs_peers else {}
    found: list[Configuration] = []
    for lanes in settings.lanes:
        groups: dict[str, list[Configuration]] = {}
        if "ppo" in cases or "appo" in cases:  # what appo is compared with
            groups[OURS] = ours(lanes, settings)
        if "ppo" in cases:
            for peer, (python, module) in peers.items():
                groups[peer] = theirs(peer, python, module, lanes, settings)
        if "appo" in cases:
            groups["appo"] = appo(lanes, settings)
        found += interleaved(groups)
    if "slow" in cases:
        for kind in settings.slow:
            for lanes in settings.slow_lanes:
                found += slow(kind, lanes, peers.get(SLOW_PEER))
    return found


def check(settings: PpoSettings) -> None:
    check_training(settings.seconds, settings.warm_s, settings.rounds)
    check_numbers(**{"lanes": settings.lanes, "slow-lanes": settings.slow_lanes, "threads": settings.threads})
    forms = check_names(settings.forms, FORMS, "form of ours")
    worlds = check_names(settings.worlds, WORLDS, "world of ours")
    runtimes = check_names(settings.runtimes, RUNTIMES, "runtime of ours")
    for flag, chosen in {"forms": forms, "worlds": worlds, "runtimes": runtimes}.items():
        if not chosen:
            raise ConfigError(f"--{flag} none leaves nothing to compare. Choose one or more.")
    if not check_names(settings.slow, KINDS, "slow env"):
        raise ConfigError("--slow none leaves nothing to measure. Choose --cases without slow.")


def chosen_cases(asked: Sequence[str] | None) -> list[str]:
    cases = list(CASES) if asked is None else check_names(asked, CASES, "case")
    if not cases:
        raise ConfigError(f"--cases none leaves nothing to measure. Choose from {', '.join(CASES)}.")
    return cases


def ours(lanes: int, settings: PpoSettings) -> list[Configuration]:
    return [c for runtime in settings.runtimes for c in _forms("ppo", lanes, runtime, settings)]


def appo(lanes: int, settings: PpoSettings) -> list[Configuration]:
    return _forms("appo", lanes, "local", settings)


def _forms(algo: str, lanes: int, runtime: str, settings: PpoSettings) -> list[Configuration]:
    return [_one(algo, lanes, runtime, form, world) for form in settings.forms for world in settings.worlds]


def _one(algo: str, lanes: int, runtime: str, form: str, world: str) -> Configuration:
    order = order_of(lanes=lanes, algo=algo, runtime=runtime, is_compiled=form == "compiled", world=world)
    name = f"{runtime}, {form}, {world} world"
    kind, pace = case_name(algo, lanes), pace_of(lanes, ROLLOUT)
    return Configuration(kind, OURS, name, HERE, MODULE, order, pace=pace, path=OUR_PATH)


def theirs(side: str, python: Path, module: str, lanes: int, settings: PpoSettings) -> list[Configuration]:
    found = []
    for threads in settings.threads:
        for workers in SF_WORKERS if side == "sample-factory" else (0,):
            name = count(threads, "thread") + (f", {count(workers, 'worker')}" if workers else "")
            order = {"envs": lanes, "threads": threads, "workers": workers}
            kind, pace = case_name("ppo", lanes), pace_of(lanes, ROLLOUT)
            found.append(Configuration(kind, side, name, python, module, order, pace=pace, path=PEER_PATH))
    return found


def slow(kind: str, lanes: int, peer: tuple[Path, str] | None) -> list[Configuration]:
    """Ours with both algorithms, as processes; the update is too small a part of it to compile."""
    name, pace = slow_name(kind, lanes), pace_of(lanes, SLOW_ROLLOUT)
    found = []
    for algo in ("ppo", "appo"):
        order = order_of(lanes=lanes, algo=algo, runtime="local", is_compiled=False, slow=kind)
        layout = f"{algo}, local, auto world"
        found.append(Configuration(name, OURS, layout, HERE, MODULE, order, pace=pace, path=OUR_PATH))
    if kind == "sleep" and peer is not None:
        order = {"envs": lanes, "threads": 1, "slow": kind, "least_updates": UPDATES_PER_ROLLOUT}
        layout = f"{lanes} processes"
        found.append(Configuration(name, SUBPROC, layout, *peer, order, pace=pace, path=PEER_PATH))
    return found


def pace_of(lanes: int, rollout: int) -> Pace:
    return Pace(rows_per_update(lanes, rollout), steps_per_update(lanes, rollout), slack_steps=lanes * rollout)


def case_name(algo: str, lanes: int) -> str:
    return f"{algo}/{ENV}/{lanes}"


def slow_name(kind: str, lanes: int) -> str:
    return f"slow/{kind}/{lanes}"
