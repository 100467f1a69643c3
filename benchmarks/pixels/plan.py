"""Which trainings `benchmarks pixels` tries: ours compiled and eager, every peer with each number of envs and threads."""

from __future__ import annotations

import importlib.util
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.compare_trainings import interleaved, side_pythons
from benchmarks.installed import HERE, OUR_PATH, PEER_PATH
from benchmarks.peers.pixels_settings import BATCH, STEPS_PER_UPDATE
from benchmarks.pixels.settings import PixelsSettings
from freewheel.bench.checks import check_names, check_numbers, check_training
from freewheel.bench.harness import OURS
from freewheel.bench.trainings import Configuration, Pace, count
from freewheel.errors import ConfigError

CASES = ("atari", "mario")
FORMS = ("mixed", "compiled", "eager")
ATARI = f"pixels/atari/{BATCH}"
MODULE = "benchmarks.pixels.training"
INSTALLED = {"sb3": "benchmarks.peers.pixels_sb3"}
OWN_LOOPS = {"cleanrl-style": "benchmarks.peers.pixels_cleanrl_style"}
PEERS = (*INSTALLED, *OWN_LOOPS)
PACE = Pace(BATCH, STEPS_PER_UPDATE)
# Past the first updates, which allocate and fill caches.
LEAST_UPDATES = 32
# What a side needs to play the game as others prepare it.
GAME_MODULES = ("ale_py", "cv2")
LOOK_TIMEOUT_S = 60.0


def check(settings: PixelsSettings) -> list[str]:
    """The cases to measure."""
    check_training(settings.seconds, settings.warm_s, settings.rounds)
    check_numbers(lanes=settings.lanes, envs=settings.envs, threads=settings.threads, rows=(settings.rows,))
    for envs in settings.envs:
        if envs % STEPS_PER_UPDATE and STEPS_PER_UPDATE % envs:
            raise ConfigError(
                f"--envs {envs} cannot make one update per {STEPS_PER_UPDATE} steps: a peer trains after whole turns of its "
                f"envs. Choose divisors or multiples of {STEPS_PER_UPDATE}."
            )
    if settings.rows % 4:
        raise ConfigError(f"--rows {settings.rows} cannot be worked off in 4 equal parts. Choose a multiple of 4.")
    if not check_names(settings.forms, FORMS, "form of ours"):
        raise ConfigError(f"--forms none leaves nothing to compare. Choose from {', '.join(FORMS)}.")
    cases = list(CASES) if settings.cases is None else check_names(settings.cases, CASES, "case")
    if not cases:
        raise ConfigError(f"--cases none leaves nothing to measure. Choose from {', '.join(CASES)}.")
    return cases


def plan(settings: PixelsSettings) -> tuple[str, list[Configuration]]:
    """The env, and everything to try with it, the sides in turns."""
    sides = side_pythons(settings.against, INSTALLED, OWN_LOOPS)
    env = choose_env(settings.env, sides)
    if env == "pong" and "sb3" in sides and "cleanrl-style" in sides:
        # The loop prepares the game with a package that only the peers have.
        sides["cleanrl-style"] = (sides["sb3"][0], OWN_LOOPS["cleanrl-style"])
    groups = {OURS: ours(env, settings)}
    groups |= {peer: theirs(peer, python, module, env, settings) for peer, (python, module) in sides.items()}
    return env, interleaved(groups)


def ours(env: str, settings: PixelsSettings) -> list[Configuration]:
    return [
        _one(OURS, f"{form}, {count(lanes, 'lane')}", HERE, MODULE, env, lanes, 1, form=form)
        for form in settings.forms
        for lanes in settings.lanes
    ]


def theirs(peer: str, python: Path, module: str, env: str, settings: PixelsSettings) -> list[Configuration]:
    return [
        _one(peer, f"{count(envs, 'env')}, {count(threads, 'thread')}", python, module, env, envs, threads)
        for envs in ((1,) if peer in OWN_LOOPS else settings.envs)
        for threads in reversed(settings.threads)
    ]


def _one(
    side: str, name: str, python: Path, module: str, env: str, envs: int, threads: int, **more: Any
) -> Configuration:
    order = {"env": env, "envs": envs, "threads": threads, "least_updates": LEAST_UPDATES, **more}
    path = OUR_PATH if side == OURS else PEER_PATH
    return Configuration(ATARI, side, name, python, module, order, pace=PACE, path=path)


def choose_env(asked: str, sides: dict[str, tuple[Path, str]]) -> str:
    """The game, where ours and all peers can play it; an env of the same shape and cost where nobody insists."""
    if asked == "frames":
        return asked
    python = sides["sb3"][0] if "sb3" in sides else HERE
    missing = [] if importlib.util.find_spec("ale_py") else ["ale_py (pip install 'freewheel[atari]')"]
    if sides:
        missing += [f"{name} in {python.parent.parent}" for name in absent(python, GAME_MODULES)]
    if not missing:
        return "pong"
    if asked == "pong":
        raise ConfigError(f"--env pong needs {', '.join(missing)}. Install it, or take --env frames.")
    return "frames"


def absent(python: Path, modules: Sequence[str]) -> list[str]:
    """Those that an interpreter does not find."""
    look = "import importlib.util, sys; print(*[m for m in sys.argv[1:] if not importlib.util.find_spec(m)])"
    try:
        done = subprocess.run(
            [str(python), "-c", look, *modules], capture_output=True, text=True, timeout=LOOK_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return list(modules)
    return done.stdout.split()
