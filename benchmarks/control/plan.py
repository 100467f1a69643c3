"""Which trainings `benchmarks control` tries: ours in each runtime, every peer, and the bare updates, each with several numbers of threads."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.compare_trainings import interleaved, side_pythons
from benchmarks.control.training import order_of
from benchmarks.installed import HERE, OUR_PATH, PEER_PATH
from benchmarks.peers.control_settings import BATCH, ENVS, MUJOCO_ENV
from benchmarks.settings import ControlSettings
from freewheel.bench.checks import check_names, check_numbers, check_training
from freewheel.bench.harness import OURS
from freewheel.bench.several_agents import SeveralAgents
from freewheel.bench.trainings import Configuration, Pace, count
from freewheel.errors import ConfigError

MODULE = "benchmarks.control.training"
PLAIN = "benchmarks.peers.control_plain"
INSTALLED = {"sb3": "benchmarks.peers.control_sb3", "sbx": "benchmarks.peers.control_sbx"}
OWN_LOOPS = {"compiled-loop": PLAIN}
PEERS = (*INSTALLED, *OWN_LOOPS)
RUNTIMES = ("local", "sequential")
# The updates alone, of two makers: what is faster is the limit for everybody.
LIMIT = "arithmetic"
MAKERS = {"ours": MODULE, "compiled-loop": PLAIN}


def pace_of(lanes: int = 0) -> Pace:
    """One update per step; free-running roles may be some turns apart at either end of a window."""
    return Pace(BATCH, 1.0, slack_steps=8.0 * (lanes + 1))


def plan(settings: ControlSettings) -> list[Configuration]:
    """Everything to try, the sides in turns."""
    check(settings)
    pythons = side_pythons(settings.against, INSTALLED, OWN_LOOPS)
    groups: dict[str, list[Configuration]] = {}
    for env in chosen_envs(settings.envs):
        groups[f"{env} {OURS}"] = ours(env, settings)
        for peer, (python, module) in pythons.items():
            groups[f"{env} {peer}"] = theirs(env, peer, python, module, settings)
        groups[f"{env} {LIMIT}"] = limits(env, settings)
    return interleaved(groups)


def check(settings: ControlSettings) -> None:
    check_training(settings.seconds, settings.warm_s, settings.rounds)
    check_numbers(lanes=settings.lanes, threads=settings.threads)
    if not check_names(settings.runtimes, RUNTIMES, "runtime"):
        raise ConfigError(f"--runtimes none leaves nothing to compare. Choose from {', '.join(RUNTIMES)}.")


def chosen_envs(asked: Sequence[str] | None) -> list[str]:
    envs = list(ENVS) if asked is None else check_names(asked, ENVS, "env")
    if not envs:
        raise ConfigError(f"--envs none leaves nothing to measure. Choose from {', '.join(ENVS)}.")
    if MUJOCO_ENV in envs and find_spec("mujoco") is None:
        needs = f'{MUJOCO_ENV} needs MuJoCo: .venv/bin/pip install "gymnasium[mujoco]"'
        if asked is not None:
            raise ConfigError(f"{needs}, or leave it out.")
        print(f"{needs}. It is left out.", file=sys.stderr)
        envs.remove(MUJOCO_ENV)
    return envs


def ours(env: str, settings: ControlSettings) -> list[Configuration]:
    found = []
    for runtime in settings.runtimes:
        for lanes in settings.lanes:
            for threads in settings.threads:
                form = "compiled" if settings.form == "compiled" else "eager"
                order = order_of(env=env, lanes=lanes, runtime=runtime, threads=threads, is_compiled=form == "compiled")
                name = f"{runtime}, {form}, {count(lanes, 'lane')}, {count(threads, 'thread')}"
                found.append(_one(env, OURS, name, HERE, MODULE, order, pace_of(lanes)))
    return found


def theirs(env: str, side: str, python: Path, module: str, settings: ControlSettings) -> list[Configuration]:
    return [
        _one(
            env,
            side,
            f"{count(lanes, 'env')}, {count(threads, 'thread')}",
            python,
            module,
            {"env": env, "envs": lanes, "threads": threads},
            pace_of(lanes),
        )
        for lanes in settings.lanes
        for threads in settings.threads
    ]


def limits(env: str, settings: ControlSettings) -> list[Configuration]:
    """The updates alone: in one process with each number of threads, and half of each batch in either of two processes."""
    found: list[Configuration] = []
    for maker, module in MAKERS.items():
        if maker == OURS and settings.form != "compiled":
            continue
        for threads in settings.threads:
            order = {"env": env, "threads": threads, "rows": BATCH}
            found.append(_one(env, LIMIT, f"{maker}, {count(threads, 'thread')}", HERE, module, order, pace_of()))
        order = {"env": env, "threads": 1, "rows": BATCH // 2}
        halves: dict[str, Any] = {"pace": pace_of(), "path": PEER_PATH, "agents": 2}
        found.append(SeveralAgents(env, LIMIT, f"{maker}, 2 processes", HERE, module, order, **halves))
    return found


def _one(
    env: str, side: str, name: str, python: Path, module: str, order: Mapping[str, Any], pace: Pace
) -> Configuration:
    path = OUR_PATH if module == MODULE else PEER_PATH
    return Configuration(env, side, name, python, module, dict(order), pace=pace, path=path)
